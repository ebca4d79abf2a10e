"""Kills a replica of torchft's data parallelism at random, and starts it again:
`torchft_kills.py BACKEND KILLS [HEARTBEAT_MS [SEED]]`.

After each kill the other replicas must commit a step without it, in the same processes. In the end all replicas that
have committed a step together must have had the same parameters after it. Prints for each kill the time from the death
to the next committed step, on the survivor that is last, and in what it was spent. Nothing is judged by time.

The lighthouse of torchft does not learn of a death. It goes on without a replica that has sent no heartbeat for
HEARTBEAT_MS, so this is most of the time. join_timeout_ms, which ends its wait for a replica that is only late, stays
long: it counts from the first that waits, so a short one excludes a replica of the next step, too, and so on.
"""
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import wait

os.environ |= {"RUST_LOG": "error", "TORCH_CPP_LOG_LEVEL": "ERROR"}         # both are read when torchft is imported

from torchft.coordination import LighthouseServer  # noqa: E402
from torchft_training import train  # noqa: E402

REPLICAS = {0, 1, 2}
LIMIT_S = 240
MARGIN = 50                             # the last step is so many ahead, lest a replica is beyond it already
context = get_context("forkserver")
context.set_forkserver_preload(["torch_tutti", "torchft"])


class Job:
    """The replicas, and by replica what they have committed since the last death."""

    def __init__(self, backend, heartbeat_ms):
        self.lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, heartbeat_timeout_ms=heartbeat_ms,
                                           join_timeout_ms=60_000, quorum_tick_ms=10)
        self.backend, self.heartbeat = backend, timedelta(milliseconds=heartbeat_ms / 10)
        self.last = context.RawValue("q", 2 ** 62)
        self.processes, self.pipes, self.committed = {}, {}, {}
        self.parameters = defaultdict(set)                  # by step and members
        for replica in REPLICAS:
            self.start(replica)

    def start(self, replica):
        self.committed[replica] = []
        self.pipes[replica], reports = context.Pipe(duplex=False)
        arguments = (self.backend, replica, self.lighthouse.address(), self.heartbeat, self.last, reports)
        self.processes[replica] = context.Process(target=train, args=arguments, daemon=True)
        self.processes[replica].start()
        reports.close()

    def read(self, seconds):
        """The reports that have come, at most one of each replica. A pipe ends with its replica."""
        for pipe in wait(self.pipes.values(), timeout=seconds):
            replica = next(replica for replica, its in self.pipes.items() if its is pipe)
            try:
                report = pipe.recv()
            except EOFError:
                del self.pipes[replica]
                continue
            self.committed[replica].append(report)
            self.parameters[report.step, *report.members].add(report.parameters)

    def read_until(self, reached, what):
        until = time.monotonic() + LIMIT_S
        while not reached():
            assert time.monotonic() < until, f"{what}: not in {LIMIT_S} s; last: {self.latest()}"
            self.read(1)
            ended = [replica for replica, process in self.processes.items() if process.exitcode]
            assert not ended, f"{what}: replicas {ended} have ended; last: {self.latest()}"

    def read_for(self, seconds):
        """Ends at any moment of a step."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)

    def latest(self):
        return {replica: reports[-1] for replica, reports in self.committed.items() if reports}

    def await_all(self):
        """Until every replica has committed a step together with all others."""
        self.read_until(lambda: self.latest().keys() == REPLICAS and all(
            set(report.members) == REPLICAS for report in self.latest().values()), "joining")

    def first_without(self, victim, replica, died):
        """The replica's first step after the death that is committed without the victim, if there is one."""
        return next((report for report in self.committed[replica]
                     if report.at > died and victim not in report.members), None)

    def kill(self, victim):
        """The time of the death, and each survivor's first step after it."""
        died = time.monotonic()
        self.processes.pop(victim).kill()
        survivors, self.committed = dict(self.processes), {replica: [] for replica in REPLICAS}
        self.read_until(lambda: all(self.first_without(victim, one, died) for one in survivors), f"without {victim}")
        assert self.processes == survivors
        return died, [self.first_without(victim, one, died) for one in survivors]

    def finish(self):
        """Every replica ends after the same step."""
        self.last.value = max(report.step for report in self.latest().values()) + MARGIN
        self.read_until(lambda: not self.pipes, "the last step")
        for process in self.processes.values():
            process.join()
        ends = {replica: (report.step, self.processes[replica].exitcode) for replica, report in self.latest().items()}
        assert set(ends.values()) == {(self.last.value - 1, 0)}, ends
        self.lighthouse.shutdown()


def divided(died, report):
    """In what the time from the death to the step was spent: in computing, before the replica comes to an all-reduce
    that fails; in waiting for its error; in the end of this step and the search of torchft for the members of the next;
    in joining their group; in the step. A replica that has no operation to wait for searches at once."""
    ends = {"computing": report.called, "error": report.failed, "search": report.joining, "joining": report.joined,
            "step": report.at}
    times, before = {"all": report.at - died}, died
    for name, end in ends.items():
        times[name], before = max(end - before, 0), max(end, before)
    return times


def show(title, times):
    print(f"{title} ms: " + ", ".join(f"{name} {1000 * its:.0f}" for name, its in times.items()), flush=True)


def main(backend, kills, heartbeat_ms=250, seed=None):
    kills, heartbeat_ms = int(kills), int(heartbeat_ms)
    seed = random.randrange(10 ** 6) if seed is None else int(seed)
    print(f"{kills} kills, seed {seed}", flush=True)
    draw, spent = random.Random(seed), []
    job = Job(backend, heartbeat_ms)
    job.await_all()
    for number in range(kills):
        job.read_for(draw.uniform(2, 4) * heartbeat_ms / 1000)          # the lighthouse has forgotten the former death
        victim = draw.choice(sorted(REPLICAS))
        died, steps = job.kill(victim)
        spent.append(divided(died, max(steps, key=lambda report: report.at)))
        show(f"kill {number + 1}, replica {victim}, step {steps[0].step},", spent[-1])
        job.start(victim)
        job.await_all()
    job.finish()
    different = [step for step, its in job.parameters.items() if len(its) > 1]
    assert not different, f"replicas had other parameters after these steps: {different}"
    for name, of in (("median", statistics.median), ("largest", max)):
        show(name, {part: of([times[part] for times in spent]) for part in spent[0]})
    print(f"{kills} kills, {len(job.parameters)} steps, the same parameters after each, the same surviving processes")


if __name__ == "__main__":
    main(*sys.argv[1:])
