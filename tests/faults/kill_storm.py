"""Runs many jobs, and kills one rank or two of each with SIGKILL at random moments. Judges how the other ranks end.

    python tests/faults/kill_storm.py --cycles 1000           1000 jobs of two ranks; prints the seed
    python tests/faults/kill_storm.py --seed 7 --only 412     one of them again: the same operations and moments
    python tests/faults/kill_storm.py --ranks 4 --hosts 2     jobs of four ranks on two simulated hosts

Requirements after every cycle: all ranks had reached the phase before the kill; every survivor ended by itself, with an
error that names a killed rank, the same one on all survivors (or it had finished before); all its results until then
were right; no process, no name in /dev/shm, no socket and no file is left. Times are reported and not judged, but a
survivor that has not ended after LIMIT_S counts as hung.

The parent has loaded torch and the library but never used them, so it can fork ranks, and a cycle takes a fraction of a
second.
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
from dataclasses import dataclass
from pathlib import Path

from rank import OK, PEER_LOST, SYSTEM, TIMEOUT, VERBS, Library, be_rank, communicate, train
from store import serve_store
from traces import Traces

# A survivor that takes longer counts as hung.
LIMIT_S = 30.0
# The timeout of joining. A rank that is killed before any other rank has met it is noticed only by this timeout.
JOIN_MS = 2000
# The timeout of operations. It is longer than LIMIT_S, so that no timeout ends an operation that hangs.
OPERATION_MS = 60000
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Plan:
    """One cycle, drawn from (seed, number) alone."""
    number: int
    # init, idle, collective or ddp
    phase: str
    size: int
    # The ranks that are killed, and the time from the beginning of the phase to the kill (init: from the start).
    victims: list
    delay_s: float
    # The operation of the phase "collective", and its float32 elements.
    verb: str
    count: int


@dataclass
class Outcome:
    """The outcome of one survivor."""
    rank: int
    # True if it ended without an error; otherwise the error's status and text.
    finished: bool = False
    status: int = OK
    text: str = ""
    # Describes a wrong result.
    wrong: str = ""
    # The seconds from the kill to the error.
    seconds: float = 0.0
    hung: bool = False
    # Describes another end: a signal, an exit status or an exception.
    died: str = ""


def draw(seed, number, phases, size=2):
    chance = random.Random(f"{seed}/{number}")
    phase = chance.choice(phases)
    longest = {"init": 0.012, "idle": 0.005, "collective": 0.020, "ddp": 0.050}[phase]
    victims = chance.sample(range(size), 2 if chance.random() < 0.1 else 1)
    return Plan(number, phase, size, victims, chance.uniform(0, longest), chance.choice(VERBS),
                int(2 ** chance.uniform(0, 22)) * 2 // size)


def judge(plan, outcomes, left, reached):
    """Returns the problems of a cycle as text, or "". outcomes: those of the survivors. left: the traces that the cycle
    has left behind. reached: the number of ranks that had reached the phase before the kill; the kill in the phase
    "init" waits for none."""
    blamed = {outcome.rank: blame(outcome.text) for outcome in outcomes if outcome.text}
    problems = ["left behind: " + ", ".join(left)] if left else []
    if plan.phase != "init" and reached < plan.size:
        problems.append(f"only {reached} of {plan.size} ranks reached the phase {plan.phase} within {LIMIT_S:.0f} s, "
                        "so the kill tested another phase")
    problems += [f"rank {outcome.rank} {problem}" for outcome in outcomes
                 if (problem := judge_one(plan, outcome, blamed))]
    if not problems and len(set(blamed.values())) > 1 and plan.phase != "init":
        problems.append(f"the survivors blame ranks {sorted(set(blamed.values()))}, not the same one")
    return "; ".join(problems)


def judge_one(plan, outcome, blamed):
    if outcome.hung:
        return f"was still there after {LIMIT_S:.0f} s"
    if outcome.died:
        return outcome.died
    if outcome.wrong:
        return f"had a wrong result: {outcome.wrong}"
    if outcome.finished:
        return "" if plan.phase == "init" else "ended without noticing"
    if outcome.status not in ((PEER_LOST, TIMEOUT, SYSTEM) if plan.phase == "init" else (PEER_LOST,)):
        return f"has the error {outcome.status}, not PEER_LOST: {outcome.text}"
    found = blamed.get(outcome.rank)
    # While joining, a rank may have met one that had given up because of a third one.
    if plan.phase == "init":
        for _ in blamed:
            found = blamed.get(found, found)
    if found not in plan.victims:
        return f"has an error that does not blame rank {' or '.join(map(str, plan.victims))}: {outcome.text}"
    return ""


def blame(text):
    """Returns the number of the dead rank that an error names. The text may also name the rank that reported the
    failure, the rank that could not reach the dead one, and the rank that saw it die."""
    text = re.sub(r"rank \d+ failed the group: ", "", text)
    found = re.search(r"reach rank (\d+)", text) or re.search(r"rank (\d+)", text)
    return found and int(found[1])


# ---- the storm ----
class Storm:
    def __init__(self, library, folder, hosts):
        self.library, self.folder, self.hosts, self.port = library, folder, hosts, None

    def open_store(self):
        """Starts the store of all cycles, which outlives the ranks."""
        self.port = serve_store()

    def body(self, plan):
        """Returns the function that each rank of this cycle runs."""
        if plan.phase != "ddp":
            unique_id = in_child(self.library.make_id)
            return lambda rank, reached: communicate(self.library, plan, unique_id, rank, reached)

        def run(rank, reached):
            import torch.distributed as dist
            store = dist.TCPStore("127.0.0.1", self.port, is_master=False)
            train(dist.PrefixStore(str(plan.number), store), rank, plan.size, reached)
        return run

    def start(self, plan, rank, body, ready, report):
        process = os.fork()
        if process:
            return process
        os.environ["TUTTI_TIMEOUT_MS"] = str(JOIN_MS if plan.phase == "init" else OPERATION_MS)
        os.environ["TUTTI_HOSTS"] = self.hosts
        os.chdir(self.folder)
        be_rank(rank, body, ready, report)

    def cycle(self, plan):
        """Runs one cycle. Returns the outcomes of the survivors, the traces that are left, and the number of ranks
        that had reached the phase before the kill."""
        body = self.body(plan)
        traces = Traces(self.folder)
        ready, tell_ready = os.pipe()
        report, tell_report = os.pipe()
        processes = {rank: self.start(plan, rank, body, tell_ready, tell_report) for rank in range(plan.size)}
        os.close(tell_ready)
        os.close(tell_report)
        reached = 0 if plan.phase == "init" else await_all(ready, plan.size)
        time.sleep(plan.delay_s)
        killed_at = time.monotonic()
        for victim in plan.victims:
            os.kill(processes[victim], signal.SIGKILL)
        for victim in plan.victims:
            os.waitpid(processes.pop(victim), 0)
        outcomes = await_survivors(processes, report, killed_at)
        os.close(ready)
        os.close(report)
        return outcomes, traces.left(), reached


def in_child(make):
    """Returns the bytes that make() returns in a child, so that the parent never uses the library itself."""
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


def await_all(ready, size):
    """Waits until all ranks have reported that they have reached the phase, or all have ended; LIMIT_S at most. Returns
    the number of ranks that have reported it."""
    deadline, reported = time.monotonic() + LIMIT_S, b""
    while len(reported) < size and select.select([ready], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(ready, size)
        if not more:
            break
        reported += more
    return len(reported)


def await_survivors(processes, report, killed_at):
    """Returns the outcomes of the survivors. Reads their reports until all of them have ended, LIMIT_S at most."""
    text, deadline, late = b"", time.monotonic() + LIMIT_S, False
    while processes:
        if not select.select([report], [], [], max(0, deadline - time.monotonic()))[0]:
            late = True
            break
        if not (more := os.read(report, 65536)):
            break
        text += more
    reports = {one["rank"]: one for one in decode_all(text.decode())}
    return [outcome_of(rank, process, reports.get(rank), killed_at, late) for rank, process in processes.items()]


def outcome_of(rank, process, report, killed_at, late):
    hung = late and not os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if hung:
        # SIGUSR1 makes it print where its threads are.
        os.kill(process, signal.SIGUSR1)
        time.sleep(0.5)
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if report is None:
        return Outcome(rank, hung=hung, died=f"ended with {status} and without a report")
    seconds = report.pop("at") - killed_at
    return Outcome(**report, seconds=seconds, hung=hung)


def decode_all(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        report, at = decoder.raw_decode(text, at)
        yield report


def summarise(times):
    print("milliseconds from the kill to a survivor's error")
    print(f"{'phase':<12}{'noticed':>8}{'median':>10}{'90 %':>10}{'99 %':>10}{'longest':>10}")
    for phase, values in sorted(times.items()):
        # No survivor had to notice a death, as may happen while joining.
        if not values:
            print(f"{phase:<12}{0:>8}")
            continue
        values.sort()
        marks = [statistics.median(values), values[len(values) * 9 // 10], values[len(values) * 99 // 100], values[-1]]
        print(f"{phase:<12}{len(values):>8}" + "".join(f"{1e3 * mark:>10.1f}" for mark in marks))


def find_library(root):
    for place in ("shim/torch_tutti", "build/release"):
        for path in sorted((root / place).glob("libtutti.so*")):
            return path
    raise SystemExit("libtutti.so was not found; build it (script/setup) or name it with --library")


def parse():
    parser = argparse.ArgumentParser(description="Kill ranks at random moments and judge what is left.")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--hosts", default="", help="simulated hosts, as in TUTTI_HOSTS")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=int, metavar="N", help="only cycle N of this seed")
    parser.add_argument("--phases", default="init,idle,collective,collective,ddp", help="the phases to draw from")
    parser.add_argument("--library", help="path of libtutti.so (default: that of this checkout)")
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
        storm = Storm(library, folder, options.hosts)
        if "ddp" in phases:
            storm.open_store()
        for number in numbers:
            plan = draw(options.seed, number, phases, options.ranks)
            outcomes, left, reached = storm.cycle(plan)
            problem = judge(plan, outcomes, left, reached)
            times[plan.phase] += [outcome.seconds for outcome in outcomes if outcome.text]
            if problem or options.only is not None:
                problems += bool(problem)
                print("\n    ".join(map(str, [f"cycle {number}: {problem or 'well'}", plan, *outcomes])), flush=True)
    summarise(times)
    print(f"{len(numbers)} cycles in {time.monotonic() - begin:.0f} s, {problems} with a problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
