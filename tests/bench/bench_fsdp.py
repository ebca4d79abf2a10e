"""Measures the time that communication adds to a step of FSDP2 (fully_shard of the model of examples/train_gpt.py, each
block and the rest), on gloo, on tutti, and on tutti with the gathered and reduced tensors in shared memory.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_fsdp.py

Column "alone": the parameters of every unit are gathered and freed, without any computation. The other columns:
steps.py.
"""
import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from steps import COMPUTING, groups, measure, report, say_where

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

BACKENDS = {"tutti, shared memory": "tutti", "tutti": "tutti", "gloo": "gloo", COMPUTING: COMPUTING}


class ShardedStep:
    """A step of the example's model under fully_shard. shared: torch allocates the gathered and reduced tensors in the
    group's shared memory (allocateTensor)."""

    def __init__(self, example, text, group, shared):
        torch.manual_seed(example.seed)
        self.example, self.text, self.number = example, text, 0
        self.model = train_gpt.GPT(len(text.characters), example.context, example.width, example.heads, example.layers)
        mesh = DeviceMesh.from_group(group, "cpu")
        for part in (*self.model.blocks, self.model):
            fully_shard(part, mesh=mesh)
        self.units = [part for part in self.model.modules() if isinstance(part, FSDPModule)]
        for unit in self.units if shared else ():
            unit.set_allocate_memory_from_process_group_for_comm(True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=example.rate)

    def step(self):
        inputs, targets = self.text.sample("train", self.example.seed, dist.get_rank(), self.number)
        loss = self.model(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.number += 1
        return loss.item()

    def gather(self):
        for unit in self.units:
            unit.unshard()
            unit.reshard()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    joined = groups()
    say_where("fully_shard")
    example = train_gpt.parse([])
    text = train_gpt.Text(example.data, example.context, example.batch)
    models = {name: ShardedStep(example, text, joined[backend], "shared" in name)
              for name, backend in BACKENDS.items()}
    steps = measure({name: model.step for name, model in models.items()}, options.turns, 3)
    alone = measure({name: model.gather for name, model in models.items()}, options.turns, 3)
    report("example", steps, alone)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
