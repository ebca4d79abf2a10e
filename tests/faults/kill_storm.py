"""Starts jobs of two ranks and kills one rank, or both, with SIGKILL at random moments; judges how the rest ends.

    python tests/faults/kill_storm.py --cycles 1000           a storm; prints its seed
    python tests/faults/kill_storm.py --seed 7 --only 412     one cycle of it again: what is done and when, as before

What must hold after every cycle: a survivor ended by itself, with an error that names the dead rank (or it had
finished before); every result it got until then was right; nothing is left: no process, no name in /dev/shm, no
socket, no file. Times are reported, never judged, except that a survivor still there after LIMIT_S counts as hung.

The parent has loaded torch and the library but never used them, so a rank is a fork away and a cycle costs a
fraction of a second.
"""
import argparse
import collections
import ctypes
import json
import os
import random
import re
import select
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rank import OK, PEER_LOST, SYSTEM, TIMEOUT, VERBS, Library, be_rank, communicate, train
from traces import Traces

LIMIT_S = 30.0          # how long a survivor may take before it counts as hung
JOIN_MS = 2000          # a rank that dies before anyone has met it is only noticed by this timeout of joining
OPERATION_MS = 60000    # longer than LIMIT_S: an operation must not be rescued by its timeout
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Plan:
    """One cycle, drawn from (seed, number) alone."""
    number: int
    phase: str          # init, idle, collective, ddp
    victim: int
    both: bool          # the other rank is killed, too
    delay_s: float      # from the phase being reached (init: from the start) to the kill
    verb: str
    count: int          # float32 elements


@dataclass
class Outcome:
    finished: bool = False              # the survivor ended without an error
    status: int = OK
    text: str = ""
    wrong: str = ""                     # a result that was not right
    seconds: float = 0.0                # from the kill to the error
    hung: bool = False
    died: str = ""                      # ended neither with an error nor well: a signal, an exit status
    left: list = field(default_factory=list)


def draw(seed, number, phases):
    chance = random.Random(f"{seed}/{number}")
    phase = chance.choice(phases)
    longest = {"init": 0.012, "idle": 0.005, "collective": 0.020, "ddp": 0.050}[phase]
    return Plan(number, phase, chance.randrange(2), chance.random() < 0.1, chance.uniform(0, longest),
                chance.choice(VERBS), int(2 ** chance.uniform(0, 22)))


def judge(plan, outcome):
    """What is wrong with this outcome, as text; empty when all is well."""
    if outcome.left:
        return "left behind: " + ", ".join(outcome.left)
    if plan.both:
        return ""
    if outcome.hung:
        return f"the survivor was still there after {LIMIT_S:.0f} s"
    if outcome.died:
        return f"the survivor {outcome.died}"
    if outcome.wrong:
        return outcome.wrong
    if outcome.finished:
        return "" if plan.phase == "init" else "the survivor ended without noticing"
    if outcome.status not in ((PEER_LOST, TIMEOUT, SYSTEM) if plan.phase == "init" else (PEER_LOST,)):
        return f"the error is {outcome.status}, not PEER_LOST: {outcome.text}"
    # the text may begin with who could not reach it, or go on with who saw it
    blamed = re.search(r"reach rank (\d+)", outcome.text) or re.search(r"rank (\d+)", outcome.text)
    if not blamed or int(blamed[1]) != plan.victim:
        return f"the error does not blame rank {plan.victim}: {outcome.text}"
    return ""


# ---- the storm ----
class Storm:
    def __init__(self, library, folder):
        self.library, self.folder, self.store = library, folder, None

    def open_store(self):
        """One store for all cycles, in the parent, so that it outlives the ranks."""
        import torch.distributed as dist
        self.store = self.store or dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return self.store.port

    def body(self, plan):
        """What a rank of this cycle does."""
        if plan.phase != "ddp":
            unique_id = in_child(self.library.make_id)
            return lambda rank, reached: communicate(self.library, plan, unique_id, rank, reached)
        port = self.open_store()

        def run(rank, reached):
            import torch.distributed as dist
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            train(dist.PrefixStore(str(plan.number), store), rank, reached)
        return run

    def start(self, plan, rank, body, ready, report):
        process = os.fork()
        if process:
            return process
        os.environ["TUTTI_TIMEOUT_MS"] = str(JOIN_MS if plan.phase == "init" else OPERATION_MS)
        os.chdir(self.folder)
        be_rank(rank, body, ready, report)

    def cycle(self, plan):
        body = self.body(plan)
        traces = Traces(self.folder)
        ready, tell_ready = os.pipe()
        report, tell_report = os.pipe()
        processes = [self.start(plan, rank, body, tell_ready, tell_report) for rank in (0, 1)]
        os.close(tell_ready)
        os.close(tell_report)
        if plan.phase != "init":
            await_both(ready)
        time.sleep(plan.delay_s)
        killed_at = time.monotonic()
        os.kill(processes[plan.victim], signal.SIGKILL)
        if plan.both:
            os.kill(processes[1 - plan.victim], signal.SIGKILL)
        os.waitpid(processes[plan.victim], 0)
        outcome = await_survivor(processes[1 - plan.victim], report, 1 - plan.victim, killed_at)
        os.close(ready)
        os.close(report)
        outcome.left = traces.left()
        return outcome


def in_child(make):
    """The bytes that make() returns in a child, so that the parent never uses the library itself."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.write(write, make())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        made = pipe.read()
    os.waitpid(process, 0)
    return made


def await_both(ready):
    """Until both ranks have told that the phase is reached, or one cannot."""
    deadline, told = time.monotonic() + LIMIT_S, b""
    while len(told) < 2 and select.select([ready], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(ready, 2)
        if not more:
            return
        told += more


def await_survivor(process, report, rank, killed_at):
    """Reads the report until nobody can write any more, which is when both processes are gone."""
    text, deadline, outcome = b"", time.monotonic() + LIMIT_S, Outcome()
    while select.select([report], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(report, 65536)
        if not more:
            break
        text += more
    else:
        outcome.hung = True
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    for told in decode_all(text.decode()):
        if told.pop("rank") == rank:
            outcome.seconds = told.pop("at") - killed_at
            outcome = Outcome(**{**asdict(outcome), **told})
            return outcome
    outcome.died = f"ended with {status} and said nothing"
    return outcome


def decode_all(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        told, at = decoder.raw_decode(text, at)
        yield told


def summarise(times):
    print("milliseconds from the kill to the survivor's error")
    print(f"{'phase':<12}{'noticed':>8}{'median':>10}{'90 %':>10}{'99 %':>10}{'longest':>10}")
    for phase, values in sorted(times.items()):
        values.sort()
        marks = [statistics.median(values), values[len(values) * 9 // 10], values[len(values) * 99 // 100], values[-1]]
        print(f"{phase:<12}{len(values):>8}" + "".join(f"{1e3 * mark:>10.1f}" for mark in marks))


def find_library(root):
    for place in ("build/release", "shim/torch_tutti", "shim/torch_tutti/lib"):
        for path in sorted((root / place).glob("libtutti.so*")):
            return path
    raise SystemExit("libtutti.so was not found; build it (script/setup) or name it with --library")


def parse():
    parser = argparse.ArgumentParser(description="Kill ranks at random moments and judge what is left.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=int, metavar="N", help="just cycle N of this seed")
    parser.add_argument("--phases", default="init,idle,collective,collective,ddp", help="to draw from")
    parser.add_argument("--library", help="libtutti.so (default: of this checkout)")
    return parser.parse_args()


def main():
    options = parse()
    phases = options.phases.split(",")
    if "ddp" in phases:
        import torch._dynamo  # noqa: F401  (DistributedDataParallel imports it when first made, for a second)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library = Library(options.library or find_library(Path(__file__).resolve().parents[2]))
    numbers = range(options.cycles) if options.only is None else [options.only]
    times, problems = collections.defaultdict(list), 0
    begin = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        storm = Storm(library, folder)
        if "ddp" in phases:
            storm.open_store()
        for number in numbers:
            plan = draw(options.seed, number, phases)
            outcome = storm.cycle(plan)
            problem = judge(plan, outcome)
            if not plan.both and outcome.text:
                times[plan.phase].append(outcome.seconds)
            if problem or options.only is not None:
                problems += bool(problem)
                print(f"cycle {number}: {problem or 'well'}\n    {plan}\n    {outcome}", flush=True)
    summarise(times)
    print(f"{len(numbers)} cycles in {time.monotonic() - begin:.0f} s, {problems} with a problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
