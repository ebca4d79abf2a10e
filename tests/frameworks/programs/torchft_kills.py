"""Kills a replica of torchft's data parallelism at random, and starts it again:
`torchft_kills.py BACKEND KILLS [HEARTBEAT_MS [SEED]]`.

After each kill the other replicas must commit a step without it, in the same processes. In the end all replicas that
have committed a step together must have had the same parameters after it. Prints for each kill the time from the death
to the next committed step, on the last survivor, and the parts of this time. Nothing is judged by time.

The lighthouse of torchft gets no report of a death. It excludes a replica that has sent no heartbeat for HEARTBEAT_MS,
which is most of the time. join_timeout_ms, after which the lighthouse excludes a replica that is only late, is long
here. It counts from the first replica that waits, so a short one would also exclude a replica from each later step.
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

# torchft reads both when it is imported.
os.environ |= {"RUST_LOG": "error", "TORCH_CPP_LOG_LEVEL": "ERROR"}

from torchft.coordination import LighthouseServer  # noqa: E402
from torchft_training import train  # noqa: E402

REPLICAS = {0, 1, 2}
LIMIT_S = 240
# The last step is this number of steps ahead, so that no replica is beyond it already.
MARGIN = 50
context = get_context("forkserver")
context.set_forkserver_preload(["torch_tutti", "torchft"])


class Job:
    """The replicas, and the steps that each has committed since the last death."""

    def __init__(self, backend, heartbeat_ms):
        self.lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, heartbeat_timeout_ms=heartbeat_ms,
                                           join_timeout_ms=60_000, quorum_tick_ms=10)
        self.backend, self.heartbeat = backend, timedelta(milliseconds=heartbeat_ms / 10)
        self.last = context.RawValue("q", 2 ** 62)
        self.processes, self.pipes, self.committed = {}, {}, {}
        # {(step, *members): checksums of the parameters}
        self.parameters = defaultdict(set)
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
        """Waits up to `seconds` for reports, and reads at most one of each replica. A pipe ends with its replica."""
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
        """Reads reports for this time, which ends at a random moment of a step."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.read(left)

    def latest(self):
        return {replica: reports[-1] for replica, reports in self.committed.items() if reports}

    def await_all(self):
        """Reads reports until every replica has committed a step together with all others."""
        self.read_until(lambda: self.latest().keys() == REPLICAS and all(
            set(report.members) == REPLICAS for report in self.latest().values()), "joining")

    def first_without(self, victim, replica, died):
        """Returns the replica's first step after the death that is committed without the victim, or None."""
        return next((report for report in self.committed[replica]
                     if report.at > died and victim not in report.members), None)

    def kill(self, victim):
        """Kills a replica. Returns the time of the death, and each survivor's first step after it."""
        died = time.monotonic()
        self.processes.pop(victim).kill()
        survivors, self.committed = dict(self.processes), {replica: [] for replica in REPLICAS}
        self.read_until(lambda: all(self.first_without(victim, one, died) for one in survivors), f"without {victim}")
        assert self.processes == survivors
        return died, [self.first_without(victim, one, died) for one in survivors]

    def finish(self):
        """Makes every replica end after the same step."""
        self.last.value = max(report.step for report in self.latest().values()) + MARGIN
        self.read_until(lambda: not self.pipes, "the last step")
        for process in self.processes.values():
            process.join()
        ends = {replica: (report.step, self.processes[replica].exitcode) for replica, report in self.latest().items()}
        assert set(ends.values()) == {(self.last.value - 1, 0)}, ends
        self.lighthouse.shutdown()


def divided(died, report):
    """Returns the parts of the time from the death to the step: computing, until the replica calls an all-reduce that
    fails; waiting for its error; the rest of this step and the search of torchft for the members of the next one;
    joining their group; the step. A replica without an operation to wait for begins to search at once."""
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
        # After this time the lighthouse no longer waits for the replica that was killed before.
        job.read_for(draw.uniform(2, 4) * heartbeat_ms / 1000)
        victim = draw.choice(sorted(REPLICAS))
        died, steps = job.kill(victim)
        spent.append(divided(died, max(steps, key=lambda report: report.at)))
        show(f"kill {number + 1}, replica {victim}, step {steps[0].step},", spent[-1])
        job.start(victim)
        job.await_all()
    job.finish()
    different = [step for step, its in job.parameters.items() if len(its) > 1]
    assert not different, f"replicas had different parameters after these steps: {different}"
    for name, of in (("median", statistics.median), ("largest", max)):
        show(name, {part: of([times[part] for times in spent]) for part in spent[0]})
    print(f"{kills} kills, {len(job.parameters)} steps, the same parameters after each, the same surviving processes")


if __name__ == "__main__":
    main(*sys.argv[1:])
