"""Trains a small network with a parameter server, in each mode, while workers are slow at times.

    python examples/parameter_server.py                     a server and three workers here (starts torchrun itself)
    python examples/parameter_server.py --straggler 0.2 --who one           the last worker sleeps in every step
    torchrun --nproc-per-node 6 examples/parameter_server.py --servers 2    any other number of ranks

The network learns the outputs of another, random network for random inputs. In each step a worker sleeps for --compute
seconds, as if a device computed, so that the ranks need not share processors.
"""
import argparse
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

from torch_tutti import ps
from torch_tutti.ps import picture

WIDTH = 64
MODES = {"sync": {}, "bounded": {"mode": "bounded"}, "async": {"mode": "async"}}
WHO = {"one": "one worker sleeps in every step", "any": "any worker sleeps, now and then"}


def network(seed):
    """Returns a network with random parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Tanh(),
                         nn.Linear(2 * WIDTH, 8))


def sleep_of_step(options, who, chance, workers):
    """Returns how many more seconds this worker sleeps in this step. With "any", each worker is slow in one of
    `workers` steps on average; with "one", the last worker is slow in each step."""
    slow = dist.get_rank() == dist.get_world_size() - 1 if who == "one" else chance.random() < 1 / workers
    return options.straggler if slow else 0.0


def train(worker, model, options, who):
    """Trains until the time or the number of steps is reached. Returns (seconds since the start, loss) of each step."""
    teacher, losses, begin = network(0), [], time.perf_counter()
    workers = dist.get_world_size() - options.servers
    chance, draw = random.Random(dist.get_rank()), torch.Generator().manual_seed(dist.get_rank())
    while len(losses) < options.steps and time.perf_counter() < begin + options.seconds:
        x = torch.randn(options.batch, WIDTH, generator=draw)
        model.zero_grad()
        with torch.no_grad():
            target = teacher(x)
        loss = nn.functional.mse_loss(model(x), target)
        time.sleep(options.compute + sleep_of_step(options, who, chance, workers))
        worker.backward(loss)
        worker.pull()
        losses.append((time.perf_counter() - begin, loss.item()))
    return losses


def run(mode, options, who):
    """Runs one training. Returns the steps of train() on a worker, and the report on a server."""
    model = network(1)
    arguments = {"staleness": options.staleness, **MODES[mode]} if mode == "bounded" else MODES[mode]
    node = ps.join(model, lambda named: torch.optim.SGD(named, lr=options.rate), servers=options.servers,
                   slice_bytes=options.slice_bytes, **arguments)
    if isinstance(node, ps.Server):
        return node.serve()
    with node as worker:
        return train(worker, model, options, who)


def show(mode, who, found, options):
    """Prints a line about one training, and returns it for the picture. found: the result of run() of each rank."""
    reports, losses = found[: options.servers], [step for steps in found[options.servers:] for step in steps]
    span = max(seconds for seconds, _ in losses)
    _, smooth = picture.smooth(losses)
    print(f"{WHO[who]}: {mode:8} {len(losses) / span:7.1f} steps/s, pushes {list(reports[0].pushes.values())}, at most "
          f"{max(report.lag for report in reports)} ahead, loss {smooth[-1]:.4f}", flush=True)
    return picture.Run(WHO[who], mode, len(losses) / span, losses)


def work(options):
    """Runs one rank: a training in each mode, with each choice of slow workers."""
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    runs = []
    for who in options.who:
        for mode in options.modes:
            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, run(mode, options, who))
            if dist.get_rank() == 0:
                runs.append(show(mode, who, found, options))
    if options.plot and dist.get_rank() == 0:
        picture.draw(runs, options.plot)
    dist.destroy_process_group()


def parse(arguments):
    parser = argparse.ArgumentParser(description="Train with a parameter server while some workers are slow.")
    parser.add_argument("--backend", default="tutti", help="tutti (default), gloo")
    parser.add_argument("--ranks", type=int, default=4, help="ranks to start, unless torchrun has (default 4)")
    parser.add_argument("--servers", type=int, default=1, help="ranks that are servers (default 1)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="(default all)")
    parser.add_argument("--staleness", type=int, default=4, help="pushes, for mode bounded (default 4)")
    parser.add_argument("--slice-bytes", type=int, default=1 << 14, help="bytes of a slice (default 16384)")
    parser.add_argument("--straggler", type=float, default=0.1, metavar="SECONDS",
                        help="how much longer a step of a slow worker takes (default 0.1)")
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO), help="which workers are slow (default: "
                                                                                 "both, in turn)")
    parser.add_argument("--compute", type=float, default=0.02, metavar="SECONDS",
                        help="sleep of each step (default 0.02)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a training (default 6)")
    parser.add_argument("--steps", type=int, default=1_000_000, help="most steps of a worker")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (default 0.1)")
    parser.add_argument("--plot", metavar="FILE", help="plot steps per second, and losses over time")
    return parser.parse_args(arguments)


def main():
    options = parse(sys.argv[1:])
    if "RANK" in os.environ:
        try:
            return work(options)
        except KeyboardInterrupt:
            return 130
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.run import main as torchrun
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        torchrun(["--standalone", f"--nproc-per-node={options.ranks}", __file__, *sys.argv[1:]])
    except SignalException as stopped:                  # after Ctrl-C; torchrun has ended the ranks
        return 128 + stopped.sigval.value


if __name__ == "__main__":
    sys.exit(main())
