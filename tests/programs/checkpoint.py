"""Trains, and saves a checkpoint every few steps, each rank its own part, by torch.distributed.checkpoint: before the
next step, or beside the training in a thread or in a process. A later start resumes from the last checkpoint.

    torchrun --nproc-per-node 2 checkpoint.py --backend tutti --folder DIRECTORY
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

EVERY = 3


class Training(Stateful):
    """A training whose state is saved and loaded: the model, its optimizer and the number of steps that are done."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 5))
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.done = 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "done": self.done}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])
        self.done = state["done"]

    def step(self):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * self.done + dist.get_rank()))
        self.optimizer.zero_grad()
        loss = (self.model(x) - x[:, :5].sin()).square().mean()
        loss.backward()
        self.optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {self.done} loss {total.item() / dist.get_world_size():.9f}", flush=True)
        self.done += 1


def newest(folder):
    """Returns the last complete checkpoint, or None. Its metadata are written last."""
    whole = [name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, ".metadata"))]
    return os.path.join(folder, max(whole, key=int)) if whole else None


class Saver:
    def __init__(self, folder, how):
        self.folder, self.how, self.pending = folder, how, None
        # The thread has a group of its own, so that its operations do not mix with those of the training.
        self.group = dist.new_group() if how == "thread" else None

    def save(self, training):
        self.finish()
        state, where = {"training": training}, os.path.join(self.folder, str(training.done))
        if self.how == "once":
            dcp.save(state, checkpoint_id=where)
        else:
            self.pending = dcp.async_save(state, checkpoint_id=where, process_group=self.group,
                                          async_checkpointer_type=AsyncCheckpointerType[self.how.upper()])

    def finish(self):
        if self.pending is not None:
            self.pending.result()
            self.pending = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--folder", required=True, help="directory of the checkpoints, which is made if necessary")
    parser.add_argument("--how", choices=["once", "thread", "process"], default="once")
    parser.add_argument("--steps", type=int, default=7)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    os.makedirs(options.folder, exist_ok=True)
    training, saver = Training(), Saver(options.folder, options.how)
    if found := newest(options.folder):
        dcp.load({"training": training}, checkpoint_id=found)
        if dist.get_rank() == 0:
            print(f"goes on after {training.done} steps", flush=True)
    for _ in range(options.steps):
        training.step()
        if training.done % EVERY == 0:
            saver.save(training)
    saver.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
