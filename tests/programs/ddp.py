"""Trains by data parallelism as most programs do: a sampler gives each rank its part of the data, rank 0 writes a
snapshot, from which all ranks resume, and all ranks evaluate the model together.

    torchrun --nproc-per-node 2 ddp.py --backend tutti --snapshot FILE
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES, FEATURES = 4, 12


def examples(count, seed):
    """Returns random points around four centres, with the numbers of their centres as labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(count, FEATURES, generator=generator), labels)


class Trainer:
    def __init__(self, snapshot):
        self.rank = dist.get_rank()
        self.snapshot = snapshot
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(),
                                      torch.nn.Dropout(0.1), torch.nn.Linear(32, CLASSES))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.begun = 0
        if os.path.exists(snapshot):
            self.load()

    def load(self):
        state = torch.load(self.snapshot, map_location="cpu", weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.begun = state["epochs"]
        if self.rank == 0:
            print(f"goes on after {self.begun} epochs")

    def save(self, epochs):
        if self.rank == 0:
            torch.save({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(),
                        "epochs": epochs}, self.snapshot)
        dist.barrier()

    def train(self, data, epochs):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=16, sampler=sampler)
        for epoch in range(self.begun, epochs):
            sampler.set_epoch(epoch)
            # This seeds the dropout.
            torch.manual_seed(100 * epoch + self.rank)
            total = torch.zeros(1)
            self.model.train()
            for inputs, labels in loader:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs), labels)
                loss.backward()
                self.optimizer.step()
                total += loss.detach() / len(loader)
            dist.reduce(total, dst=0)
            if self.rank == 0:
                print(f"epoch {epoch} loss {total.item() / dist.get_world_size():.9f}")
            self.save(epoch + 1)

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        sampler = DistributedSampler(data, shuffle=False)
        counts = torch.zeros(2, dtype=torch.int64)
        for inputs, labels in DataLoader(data, batch_size=16, sampler=sampler):
            right = self.model(inputs).argmax(dim=1) == labels
            counts += torch.tensor([right.sum(), len(right)])
        dist.all_reduce(counts)
        if self.rank == 0:
            print(f"right {counts[0].item()} of {counts[1].item()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--snapshot", required=True, help="file to resume from if it exists, and to write")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    trainer = Trainer(options.snapshot)
    trainer.train(examples(256, seed=1), options.epochs)
    trainer.evaluate(examples(128, seed=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
