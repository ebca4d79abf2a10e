"""Another program beside a benchmark, as bench_waiting.py starts it: it keeps one core busy for so much of the time, in
slices of so long, and ends with whoever started it.

    python tests/bench/busy.py --core 0 --share 0.12 --slice 1 4            ms, drawn at random
    python tests/bench/busy.py --core 0 --share 0.12 --slice 1 4 --first    goes before every ordinary thread

The first shares the core as the system's scheduler has it. The second takes it, whatever runs there, and gives it back
when its slice is over (SCHED_FIFO; needs root): to the threads that it stops this is what a hypervisor does.
"""
import argparse
import os
import random
import time

PRIORITY = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--slice", type=float, nargs=2, default=(1, 4), metavar="MS")
    parser.add_argument("--first", action="store_true")
    options = parser.parse_args()
    draw, parent = random.Random(options.core), os.getppid()
    os.sched_setaffinity(0, {options.core})
    if options.first:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    while os.getppid() == parent:
        taken = draw.uniform(*options.slice) / 1000
        until = time.thread_time() + taken
        while time.thread_time() < until:
            pass
        time.sleep(taken * (1 / options.share - 1) * draw.uniform(0.5, 1.5))


if __name__ == "__main__":
    main()
