"""Runs the parts of script/bench one after the other, all for a limited time, and continues an interrupted run.

    python tests/bench/parts.py RESULTS [--again] [PART ...]

Without a part it runs all parts of LIMITS_S that the run before has not finished. It measures a part that is named
even if the part is finished. RESULTS/run.json has the commit, the machine and the settings of a run, and the parts that
it has begun and finished. A run of another commit, machine or settings starts from the beginning, and so do a run
after a finished one and a run with --again. A part that has begun and not finished keeps its files: the programs of
`core` and `peers` write every finished row or run into them, and continue from there.
"""
import argparse
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A test loads this file by its path.
sys.path.insert(0, str(ROOT / "tests/bench"))

import processors  # noqa: E402

# The seconds that each part may take, 25 minutes all together. A part may also take what those before it left over.
LIMITS_S = {"growth": 45, "call": 45, "ddp": 60, "fsdp": 60, "decode": 90, "torch": 150, "core": 660, "peers": 360,
            "page": 30}
# Parts that run only if they are named.
LIMITS_OF_OTHERS_S = {"hosts": 1800, "regret": 3600}
# The files of each part in the folder of results.
FILES = {"core": ["core.json"], "growth": ["growth.json"], "peers": ["peers.json", "peers_runs.json"],
         "torch": ["torch_small.json", "torch_large.json", "torch_shared.json"], "call": ["call.json"],
         "ddp": ["ddp.txt"], "fsdp": ["fsdp.txt"], "decode": ["decode.txt"], "page": [],
         "hosts": ["hosts.json", "hosts_peers.json"], "regret": ["regret.json"]}
STATE = "run.json"
# The seconds between SIGTERM and SIGKILL to a part that is stopped.
GRACE_S = 5.0
INTERRUPTIONS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


# ---- what a run belongs to ----
def output_of(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout


def identity_of_run():
    """Returns the commit, the uncommitted changes, the machine and the settings, which must be equal for a run to
    continue. Changes of docs/ do not count, because the last part writes there."""
    changes = output_of("git", "diff", "HEAD", "--", ".", ":!docs")
    return {"commit": output_of("git", "rev-parse", "HEAD").decode().strip(),
            "changes": hashlib.sha256(changes).hexdigest() if changes else "",
            "machine": {**processors.identity(), "host": socket.gethostname()},
            "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith("TUTTI_")}}


# ---- the state of a run ----
class Run:
    """The state of a run in a folder of results. Every change is written at once."""

    def __init__(self, folder, identity, again=False):
        self.folder, self.path, self.identity = folder, folder / STATE, identity
        folder.mkdir(parents=True, exist_ok=True)
        before = {} if again else self.read()
        self.differs = [name for name in identity if before and before.get("identity", {}).get(name) != identity[name]]
        same = before and not self.differs
        self.begun, self.finished = ([*before[key]] if same else [] for key in ("begun", "finished"))

    def read(self):
        """Returns the state of the run before; {} if there was none, or if its file is broken."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return found if {"identity", "begun", "finished"} <= found.keys() else {}
        except (OSError, ValueError, AttributeError):
            return {}

    def write(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"identity": self.identity, "begun": self.begun, "finished": self.finished},
                                  indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)

    def start_over(self):
        """Forgets all parts, and removes all results."""
        self.begun, self.finished = [], []
        for part in FILES:
            self.remove_files(part)
        self.write()

    def remove_files(self, part):
        for name in FILES[part]:
            (self.folder / name).unlink(missing_ok=True)

    def begin(self, part):
        """Removes the files of a part, unless it has begun and not finished."""
        if part in self.finished or part not in self.begun:
            self.remove_files(part)
        self.finished = [name for name in self.finished if name != part]
        self.begun = [*dict.fromkeys([*self.begun, part])]
        self.write()

    def finish(self, part):
        self.finished.append(part)
        self.write()


def chosen(run, parts):
    """Returns the parts to run. parts: those that are named. Without one, a new run removes all results."""
    if parts:
        return parts
    missing = [part for part in LIMITS_S if part not in run.finished]
    if not missing or not run.begun:
        run.start_over()
        return list(LIMITS_S)
    return missing


# ---- running ----
def run_limited(command, limit_s):
    """Runs a command, and stops it with all its processes after limit_s, or when this process is interrupted. Returns
    its exit status; None if it took longer.

    The handlers of the interruptions do nothing, because an exception of a handler could come between the start of the
    processes and `try`, or inside of Popen.wait while it holds a lock. The numbers of the signals arrive in a pipe."""
    with interruptions() as signals:
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            return status_of(process, time.monotonic() + limit_s, signals)
        finally:
            stop(process)


@contextlib.contextmanager
def interruptions():
    """Gives a descriptor from which the number of each interruption can be read. A number that is not read is raised at
    the end."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in INTERRUPTIONS}
    descriptor = signal.set_wakeup_fd(writable)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writable)
        with open(readable, "rb") as left:
            for number in left.read():
                signal.raise_signal(number)


def status_of(process, until, signals):
    """Returns the exit status of a process, or None if it has not ended then. Raises what an interruption raises."""
    ended = os.pidfd_open(process.pid)
    try:
        while process.poll() is None:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            if signals in select.select([ended, signals], [], [], left_s)[0]:
                raise_interruption(signals)
        return process.returncode
    finally:
        os.close(ended)


def raise_interruption(signals):
    for number in os.read(signals, 16):
        if number in INTERRUPTIONS:
            interrupt(number, None)


def interrupt(number, _):
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def stop(process):
    """Ends all processes of a session, also those that its first process has left behind."""
    for number, wait_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(wait_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def run_parts(run, parts, command_of, limits):
    """Runs the parts in order. Returns those that took too long. A part that fails ends the program. The page is
    written only if no part before it took too long."""
    late, until = [], time.monotonic()
    for part in parts:
        if part == "page" and late:
            break
        until += limits[part]
        limit_s = until - time.monotonic()
        print(f"== {part} (for at most {limit_s:.0f} s)", flush=True)
        run.begin(part)
        status = run_limited(command_of(part), limit_s)
        if status is None:
            late.append(part)
            print(f"{part}: stopped after {limit_s:.0f} s; its finished rows are kept", file=sys.stderr, flush=True)
        elif status:
            raise SystemExit(f"error: the part {part} failed with {status}; after mending it, run script/bench again: "
                             "it continues with this part")
        else:
            run.finish(part)
    return late


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(FILES))
    parser.add_argument("--again", action="store_true", help="start from the beginning")
    options = parser.parse_args()
    for part in options.parts:
        if part not in FILES:
            parser.error(f"there is no part '{part}': {', '.join(FILES)}")
    return options


def main():
    options = parse()
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    run = Run(options.results, identity_of_run(), options.again)
    if run.differs:
        print(f"the run before had another {' and '.join(run.differs)}: this one starts from the beginning")
    parts = chosen(run, options.parts)
    if kept := [part for part in run.finished if part not in parts]:
        print(f"kept from the run before: {', '.join(kept)}; --again measures them again")
    try:
        late = run_parts(run, parts, lambda part: [ROOT / "script/bench", "--part", part],
                         LIMITS_S | LIMITS_OF_OTHERS_S)
    except KeyboardInterrupt:
        raise SystemExit("\ninterrupted; run script/bench again: it continues") from None
    if late:
        raise SystemExit(f"error: not finished in time: {', '.join(late)}. Run script/bench again: it continues")


if __name__ == "__main__":
    main()
