"""Tests of torch over verbs on two hosts of the guest: every operation and random programs, judged by the model; ranks
that are killed, so that the others must get an error; a cable that is pulled; and training. Prints a line for each
test, as guest.sh does. One program has all tests, because loading torch is slow in the guest.

    script/test-verbs -- python tests/verbs/torch_ranks.py [--seed N] [--programs N] [--kills N] [--only WORDS]
"""
import argparse
import contextlib
import os
import runpy
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), *(str(ROOT / "tests" / name) for name in ("support", "python", "hosts", "faults"))]
import across  # noqa: E402
import host_storm  # noqa: E402
import hosts as namespaces  # noqa: E402
import model  # noqa: E402
import random_programs  # noqa: E402
import torch_ranks  # noqa: E402
from model import Step  # noqa: E402
from operations import verdict  # noqa: E402

PLACEMENTS = [(0, 1), (0, 1, 1), (1, 0, 0, 1)]
# A shape whose tensor does not fit an eager message.
LARGE = (30000,)
CABLE_S = 6
# The limit for each wait: the guest is emulated, and may need minutes where a real machine needs seconds.
GUEST_S = 300


def once_each(shape):
    steps = [Step(kind, shape=shape, seed=number) for number, kind in enumerate(model.REDUCING + model.MOVING)]
    return [*steps, Step("messages", messages=((0, 1, 3), (1, 0, 2))), Step("barrier")]


def every_operation(lab, options):
    for placement in PLACEMENTS:
        with contextlib.closing(across.Across(lab, placement, timeout_s=GUEST_S)) as ranks:
            for shape in ((3,), LARGE):
                wrong = verdict(ranks, once_each(shape))
                assert not wrong, "\n".join(wrong)


def random_ones(lab, options):
    for number, placement in enumerate(PLACEMENTS):
        with contextlib.closing(across.Across(lab, placement, timeout_s=GUEST_S)) as ranks:
            random_programs.one_round(options.seed + number, random_programs.programs(), lambda program: (
                random_programs.check(lambda ranks=ranks: ranks, f"on {placement}: ", {}, program)), options.programs)


def deaths(lab, options):
    """Kills ranks in several cycles; the survivors must get an error. In some cycles the survivors only receive, and a
    reliable connection that only receives does not notice the death of its peer."""
    storm, problems = host_storm.Storm(lab), []
    for number in range(options.kills):
        plan = host_storm.draw(options.seed, number, 2, 2, False)
        problems += [f"cycle {number}, {plan}: {problem}" for problem in storm.cycle(plan)]
    host_storm.summarise(storm.times)
    assert storm.times and not problems, "\n".join(problems)


def sum_up(world, seconds):
    """Runs all-reduces for that many seconds, and asserts each sum. Returns their numbers in each half of the time."""
    import torch
    import torch.distributed as dist
    begin, counts = time.monotonic(), [0, 0]
    over = torch.zeros(1)
    while not over:
        total = torch.full((1000,), world.rank + 1.0)
        dist.all_reduce(total)
        assert bool((total == 3).all()), total
        counts[time.monotonic() - begin > seconds / 2] += 1
        over = torch.tensor([float(time.monotonic() - begin > seconds)])
        dist.broadcast(over, 0)
    return counts


def cable(lab, options):
    """Pulls a cable under running sums, plugs it in again, and asserts that all sums are right. Only RDMA uses that
    cable, not the control links. The device sends lost packets again."""
    with contextlib.closing(across.Across(lab, (0, 1), timeout_s=GUEST_S)) as ranks:
        ranks.begin(torch_ranks.sum_up, CABLE_S)
        time.sleep(CABLE_S / 4)
        for state, seconds in (("down", CABLE_S / 8), ("up", 0)):
            subprocess.run(["ip", "-n", "wires", "link", "set", "w1", state], check=True)
            time.sleep(seconds)
        outcomes = ranks.collect(GUEST_S)
    assert all(not outcome.failed and min(outcome.value) > 0 for outcome in outcomes), outcomes


def train(world, arguments):
    os.environ.update(MASTER_ADDR=world.store.host, MASTER_PORT=str(world.store.port), RANK=str(world.rank),
                      WORLD_SIZE=str(world.size), TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    program = runpy.run_path(str(ROOT / "examples/train_gpt.py"), run_name="train_gpt")
    return program["work"](program["parse"](arguments))


def training(lab, options):
    """Trains on tutti and on gloo, whose losses and parameters must be equal."""
    words = ["--compare", "--steps", "6", "--batch", "2", "--context", "16", "--layers", "1", "--sample", "1"]
    with contextlib.closing(across.Across(lab, (0, 1), join=False, timeout_s=GUEST_S)) as ranks:
        assert ranks.run(torch_ranks.train, words, limit_s=GUEST_S) == [0, 0]


CHECKS = {"every operation on 2, 3 and 4 ranks": every_operation, "random programs on them": random_ones,
          "ranks that are killed": deaths, "a cable that is pulled and plugged in again": cable,
          "examples/train_gpt.py": training}


def run(name, check, *arguments):
    begin, verdict_of_it = time.monotonic(), "  ok"
    try:
        check(*arguments)
    except (AssertionError, OSError, subprocess.SubprocessError):
        verdict_of_it = "FAIL"
        traceback.print_exc(file=sys.stdout)
    print(f"{verdict_of_it}  {time.monotonic() - begin:3.0f} s  {name}", flush=True)
    return verdict_of_it == "FAIL"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=2,
                        help="random programs for each placement of ranks (default: 2)")
    parser.add_argument("--kills", type=int, default=4, help="cycles in which ranks are killed (default: 4)")
    parser.add_argument("--only", default="", help="run only checks whose name contains this")
    options = parser.parse_args()
    os.environ.setdefault("TUTTI_TRANSPORT", "verbs")
    # The agents of across.py import this file.
    os.environ["PYTHONPATH"] = str(HERE)
    across.READY_S = GUEST_S
    with namespaces.Hosts(2) as some, contextlib.closing(across.Lab(some)) as lab:
        wanted = [(name, check) for name, check in CHECKS.items() if options.only in name]
        return max((run(name, check, lab, options) for name, check in wanted), default=2)


if __name__ == "__main__":
    sys.exit(main())
