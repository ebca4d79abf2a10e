"""Trains a transformer in stages, one or two on each rank, by one of torch's pipeline schedules.

    torchrun --nproc-per-node 2 pipelining.py --backend tutti --schedule 1F1B
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORDS, LENGTH, WIDTH, HEADS, LAYERS, ROWS, MICROBATCHES = 40, 12, 32, 4, 8, 16, 8


class Stage(nn.Module):
    """Some layers of the whole model. The first stage also has the embedding, and the last one the output layer."""

    def __init__(self, number, count):
        super().__init__()
        torch.manual_seed(number)
        self.words = nn.Embedding(WORDS, WIDTH) if number == 0 else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS // count))
        self.output = nn.Linear(WIDTH, WORDS) if number == count - 1 else None

    def forward(self, x):
        if self.words is not None:
            x = self.words(x)
        for layer in self.layers:
            x = layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH), is_causal=True)
        return x if self.output is None else self.output(x)


def loss_of(output, words):
    return F.cross_entropy(output.flatten(0, 1), words.flatten())


def text(step):
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(WORDS, (ROWS, 1), generator=generator)
    stride = torch.randint(1, 5, (ROWS, 1), generator=generator)
    whole = (first + stride * torch.arange(LENGTH + 1)) % WORDS
    return whole[:, :-1], whole[:, 1:]


def make(name):
    """Returns the schedule, this rank's stages, and whether they include the first and the last one. A schedule for
    several stages on a rank has two here, placed in a loop or in a V."""
    kind, rank, size = get_schedule_class(name), dist.get_rank(), dist.get_world_size()
    count = 2 * size if issubclass(kind, PipelineScheduleMulti) else size
    second = count - 1 - rank if name in ("ZBVZeroBubble", "DualPipeV") else rank + size
    mine = [rank, second] if count > size else [rank]
    parts = nn.ModuleList(Stage(number, count) for number in mine)
    stages = [PipelineStage(part, number, count, torch.device("cpu")) for part, number in zip(parts, mine)]
    schedule = kind(stages if count > size else stages[0], MICROBATCHES, loss_fn=loss_of)
    return schedule, parts, 0 in mine, count - 1 in mine


def train(name, steps):
    schedule, parts, first, last = make(name)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-3)
    for step in range(steps):
        words, following = text(step)
        optimizer.zero_grad()
        losses = []
        schedule.step(*([words] if first else []), **(dict(target=following, losses=losses) if last else {}))
        optimizer.step()
        if last:
            print(f"step {step} loss {torch.stack(losses).mean().item():.9f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--schedule", default="1F1B", help="a name that torch.distributed.pipelining knows")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    train(options.schedule, options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
