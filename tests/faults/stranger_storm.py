"""Runs jobs on three hosts that are namespaces while an attacker on a fourth one (stranger.py) attacks them: one job
after the other joins, computes and ends. Every result must be right, no rank may fail, and the attacker must learn
nothing.

    python tests/faults/stranger_storm.py --seconds 600

Prints the number of operations, and the times of the longest operation and of the longest joining. These times are not
judged, because other programs of a busy machine lengthen them. Needs what script/hosts needs.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("support", "python", "hosts", "faults")]
import hosts as namespaces  # noqa: E402
import stranger_storm  # noqa: E402
from across import Across, Lab  # noqa: E402

JOB, STRANGER = (0, 1, 2), 3
# The elements of a sum.
COUNT = 1000
LIMIT_S = 60


def compute(world, seconds):
    """Makes sums, and asserts that they are right. Returns their number, and the seconds of the longest one."""
    import torch
    import torch.distributed as dist
    count, longest, until = 0, 0.0, time.monotonic() + seconds
    more = torch.ones(1)
    while more.item():
        begin = time.monotonic()
        total = torch.full((COUNT,), world.rank + 1.0)
        dist.all_reduce(total)
        longest = max(longest, time.monotonic() - begin)
        count += 1
        if not bool((total == world.size * (world.size + 1) / 2).all()):
            raise AssertionError("a wrong sum")
        # Rank 0 decides, so that all ranks stop after the same operation.
        if count % 50 == 0:
            more = torch.tensor([float(time.monotonic() < until)])
            dist.broadcast(more, 0)
    return count, longest


class Storm:
    def __init__(self, lab, transport):
        self.lab, self.transport = lab, transport
        self.operations, self.jobs, self.longest_s, self.joining_s = 0, 0, 0.0, 0.0

    def job(self, seconds):
        begin = time.monotonic()
        ranks = Across(self.lab, JOB, environment={"TUTTI_TRANSPORT": self.transport})
        try:
            self.joining_s = max(self.joining_s, time.monotonic() - begin)
            values = ranks.run(stranger_storm.compute, seconds, limit_s=seconds + LIMIT_S)
        finally:
            ranks.close()
        self.jobs += 1
        self.operations += values[0][0]
        self.longest_s = max([self.longest_s, *(longest for _, longest in values)])


def main():
    parser = argparse.ArgumentParser(description="Compute beside a stranger on the same network.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--job-seconds", type=float, default=5, help="how long each job computes (default: 5)")
    parser.add_argument("--transport", default="tcp")
    options = parser.parse_args()
    program = str(HERE / "stranger.py")
    with namespaces.Hosts(4) as some, tempfile.TemporaryDirectory() as folder:
        seen = str(Path(folder) / "seen")
        lab = Lab(some)
        lab.agents_of(JOB)
        watcher = subprocess.Popen([*some.entering(some.switch.inside, "-n"), sys.executable, program, "watch", seen])
        attacker = some.start(STRANGER, [sys.executable, program, "attack", seen, options.seconds],
                              stdout=subprocess.PIPE, text=True)
        storm = Storm(lab, options.transport)
        until = time.monotonic() + options.seconds
        try:
            while time.monotonic() < until:
                storm.job(min(options.job_seconds, max(1.0, until - time.monotonic())))
            report = json.loads(attacker.communicate(timeout=LIMIT_S)[0])
        finally:
            attacker.kill()
            watcher.kill()
            watcher.wait()
            lab.close()
    print(f"{storm.jobs} jobs, {storm.operations} operations, all right; the longest took {storm.longest_s:.3f} s, "
          f"the longest joining {storm.joining_s:.3f} s")
    print("the stranger: " + ", ".join(f"{name} {count}" for name, count in report.items()))
    return 1 if report["learned"] or not report["repeated a hello"] else 0


if __name__ == "__main__":
    sys.exit(main())
