"""Compares a step of DistributedDataParallel with compressed gradients with a plain step, whose gradients are sent as
they are.

    script/hosts 2 -- tests/bench/bench_compression.py                     between two hosts, as fast as this machine is
    script/hosts 2 --rate 1gbit -- tests/bench/bench_compression.py        over a link with a limited rate

The model is that of examples/train_gpt.py, with the sizes asked for. All forms take turns in one run. A step is as long
as its slowest rank takes. Columns: the step in ms; the median, over the turns, of the step divided by the plain step of
the same turn; the MB that a rank sends in a step; the ms in which gradients are packed, sent and put together; and the
processor time of all ranks. Break-even is the rate of a link below which a form is quicker than plain: the bytes that
it saves, divided by the time by which its step is longer when the link costs nothing. It is computed from this run, so
it is meaningful only without --rate.
"""
import argparse
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_tutti
from steps import measure, median_ms, say_where
from torch_tutti.compression import Compression

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

FORMS = {"plain": None, "fp16": Compression("fp16"), "bf16": Compression("bf16"), "int8": Compression("int8"),
         "int4": Compression("int4"), "topk 1 %": Compression("topk"), "randomk 1 %": Compression("randomk")}


class Training:
    def __init__(self, form, options, text):
        torch.manual_seed(1)
        model = train_gpt.GPT(len(text.characters), options.context, options.width, options.heads, options.layers)
        self.model = DistributedDataParallel(model, bucket_cap_mb=4, gradient_as_bucket_view=True)
        self.compressor = torch_tutti.compression.compress(self.model, form) if form else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.text, self.number = text, 0

    def step(self):
        inputs, targets = self.text.sample("train", 1, dist.get_rank(), self.number)
        self.model(inputs, targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.number += 1

    def sent(self):
        """Returns the bytes that this rank sends in a step, and the seconds of its compressor in a step; 0 without
        one."""
        count = sum(p.numel() for p in self.model.parameters())
        if self.compressor is None:
            # Each rank sends its part of the bytes of its host.
            hosts = int(os.environ.get("NNODES", 1))
            sides = hosts if hosts > 1 else dist.get_world_size()
            return 2 * 4 * count * (sides - 1) / sides / (dist.get_world_size() / sides), 0.0
        report = self.compressor.report()
        return report["sent_bytes"] / (self.number - 1), report["seconds"] / (self.number - 1)


def show(steps, trainings):
    plain_bytes, _ = trainings["plain"].sent()
    print(f"{'':<12} {'step, ms':>9} {'by plain (quartiles)':>22} {'MB sent':>8} {'its ms':>7} {'cpu, ms':>8} "
          f"{'break-even, Gbit/s':>19}")
    for form, samples in steps.items():
        ratios = [mine[0] / other[0] for mine, other in zip(samples, steps["plain"])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        sent, seconds = trainings[form].sent()
        longer = statistics.median(mine[0] - other[0] for mine, other in zip(samples, steps["plain"]))
        even = f"{(plain_bytes - sent) * 8 / longer / 1e9:.1f}" if longer > 0 else "always quicker"
        quartiles = f"{middle:.2f} ({low:.2f} .. {high:.2f})"
        print(f"{form:<12} {median_ms(samples):>9.1f} {quartiles:>22} {sent / 1e6:>8.2f} {seconds * 1e3:>7.1f} "
              f"{median_ms(samples, 1):>8.1f} {even if form != 'plain' else '':>19}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="forms to measure beside plain")
    for name, value in (("width", 256), ("heads", 8), ("layers", 6), ("context", 64), ("batch", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    say_where("gradients in fewer bytes")
    text = train_gpt.Text(None, options.context, options.batch)
    trainings = {name: Training(form, options, text) for name, form in FORMS.items()
                 if name in ("plain", *options.forms)}
    steps = measure({name: training.step for name, training in trainings.items()}, options.turns, 3)
    if dist.get_rank() == 0:
        show(steps, trainings)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
