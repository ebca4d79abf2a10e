"""Starts jobs of some ranks and kills one rank, or two, with SIGKILL at random moments; judges how the rest ends.

    python tests/faults/kill_storm.py --cycles 1000           a storm of two ranks; prints its seed
    python tests/faults/kill_storm.py --seed 7 --only 412     one cycle of it again: what is done and when, as before
    python tests/faults/kill_storm.py --ranks 4 --hosts 2     of four ranks, which pretend to be on two hosts

Requirements after every cycle: every survivor ended by itself, with an error that names a dead rank, the same one on
all (or it had finished before); every result it got until then was right; nothing is left: no process, no name in
/dev/shm, no socket, no file. Times are reported, never judged, except that a survivor still there after LIMIT_S counts
as hung.

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
from dataclasses import dataclass
from pathlib import Path

from rank import OK, PEER_LOST, SYSTEM, TIMEOUT, VERBS, Library, be_rank, communicate, train
from store import serve_store
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
    size: int
    victims: list       # ranks
    delay_s: float      # from the phase being reached (init: from the start) to the kill
    verb: str
    count: int          # float32 elements


@dataclass
class Outcome:
    """The outcome of one survivor."""
    rank: int
    finished: bool = False              # it ended without an error
    status: int = OK
    text: str = ""
    wrong: str = ""                     # a result that was not right
    seconds: float = 0.0                # from the kill to the error
    hung: bool = False
    died: str = ""                      # ended neither with an error nor well: a signal, an exit status


def draw(seed, number, phases, size=2):
    chance = random.Random(f"{seed}/{number}")
    phase = chance.choice(phases)
    longest = {"init": 0.012, "idle": 0.005, "collective": 0.020, "ddp": 0.050}[phase]
    victims = chance.sample(range(size), 2 if chance.random() < 0.1 else 1)
    return Plan(number, phase, size, victims, chance.uniform(0, longest), chance.choice(VERBS),
                int(2 ** chance.uniform(0, 22)) * 2 // size)


def judge(plan, outcomes, left):
    """Returns the problems of a cycle as text, or "". outcomes: of the survivors. left: traces that the cycle left
    behind."""
    blamed = {outcome.rank: blame(outcome.text) for outcome in outcomes if outcome.text}
    problems = ["left behind: " + ", ".join(left)] if left else []
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
    if plan.phase == "init":            # a rank may have met one that had given up, because of another
        for _ in blamed:
            found = blamed.get(found, found)
    if found not in plan.victims:
        return f"has an error that does not blame rank {' or '.join(map(str, plan.victims))}: {outcome.text}"
    return ""


def blame(text):
    """The rank that an error names. Its text may begin with who told of it, or who could not reach it, and go on with
    who saw it."""
    text = re.sub(r"rank \d+ failed the group: ", "", text)
    found = re.search(r"reach rank (\d+)", text) or re.search(r"rank (\d+)", text)
    return found and int(found[1])


# ---- the storm ----
class Storm:
    def __init__(self, library, folder, hosts):
        self.library, self.folder, self.hosts, self.port = library, folder, hosts, None

    def open_store(self):
        """One store for all cycles, which outlives the ranks."""
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
        """The outcomes of those that were not killed, and what was left."""
        body = self.body(plan)
        traces = Traces(self.folder)
        ready, tell_ready = os.pipe()
        report, tell_report = os.pipe()
        processes = {rank: self.start(plan, rank, body, tell_ready, tell_report) for rank in range(plan.size)}
        os.close(tell_ready)
        os.close(tell_report)
        if plan.phase != "init":
            await_all(ready, plan.size)
        time.sleep(plan.delay_s)
        killed_at = time.monotonic()
        for victim in plan.victims:
            os.kill(processes[victim], signal.SIGKILL)
        for victim in plan.victims:
            os.waitpid(processes.pop(victim), 0)
        outcomes = await_survivors(processes, report, killed_at)
        os.close(ready)
        os.close(report)
        return outcomes, traces.left()


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


def await_all(ready, size):
    """Until all ranks have told that the phase is reached, or one cannot."""
    deadline, told = time.monotonic() + LIMIT_S, b""
    while len(told) < size and select.select([ready], [], [], max(0, deadline - time.monotonic()))[0]:
        more = os.read(ready, size)
        if not more:
            return
        told += more


def await_survivors(processes, report, killed_at):
    """Reads the report until nobody can write any more, which is when all processes are gone."""
    text, deadline, late = b"", time.monotonic() + LIMIT_S, False
    while processes:
        if not select.select([report], [], [], max(0, deadline - time.monotonic()))[0]:
            late = True
            break
        if not (more := os.read(report, 65536)):
            break
        text += more
    told = {one["rank"]: one for one in decode_all(text.decode())}
    return [outcome_of(rank, process, told.get(rank), killed_at, late) for rank, process in processes.items()]


def outcome_of(rank, process, told, killed_at, late):
    hung = late and not os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if hung:
        os.kill(process, signal.SIGUSR1)        # says where it is
        time.sleep(0.5)
        os.kill(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if told is None:
        return Outcome(rank, hung=hung, died=f"ended with {status} and said nothing")
    seconds = told.pop("at") - killed_at
    return Outcome(**told, seconds=seconds, hung=hung)


def decode_all(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        told, at = decoder.raw_decode(text, at)
        yield told


def summarise(times):
    print("milliseconds from the kill to a survivor's error")
    print(f"{'phase':<12}{'noticed':>8}{'median':>10}{'90 %':>10}{'99 %':>10}{'longest':>10}")
    for phase, values in sorted(times.items()):
        if not values:                                  # nobody had to be told, as may happen while joining
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
    parser.add_argument("--hosts", default="", help="that the ranks pretend to be on, as in TUTTI_HOSTS")
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
        storm = Storm(library, folder, options.hosts)
        if "ddp" in phases:
            storm.open_store()
        for number in numbers:
            plan = draw(options.seed, number, phases, options.ranks)
            outcomes, left = storm.cycle(plan)
            problem = judge(plan, outcomes, left)
            times[plan.phase] += [outcome.seconds for outcome in outcomes if outcome.text]
            if problem or options.only is not None:
                problems += bool(problem)
                print("\n    ".join(map(str, [f"cycle {number}: {problem or 'well'}", plan, *outcomes])), flush=True)
    summarise(times)
    print(f"{len(numbers)} cycles in {time.monotonic() - begin:.0f} s, {problems} with a problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
