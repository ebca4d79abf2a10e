"""Runs cases, each in its own process with its own folder, log and session.

The process of a case is forked from this one, and forks the ranks of the case. Forking makes a case take a second
instead of twenty. It is safe here, because the parent has only imported torch and its tests: it has one thread (checked
before every fork) and no group, and has drawn no random number (torch's harness seeds every rank itself).
`suite.Cases.setUp` sets the variables that a spawned rank would read from the environment while importing. With
`--spawn` ranks are spawned as torch does.

No process outlives the limit of its case: all processes of a case's session are killed when the case has ended or is
late.
"""
from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

from conformance.results import FAILED, PASSED, SKIPPED, Result

LIMIT_S = 520
"""How long a case and its ranks may live. torch's own limit, which shows where the ranks hang, comes earlier: 500 s for
the longest test."""


class Running:
    """A case that has been started."""

    def __init__(self, suite, case: str, folder: Path, limit_s: float = LIMIT_S):
        threads = os.listdir("/proc/self/task")
        if len(threads) > 1:
            raise RuntimeError(f"{len(threads)} threads are in this process, so no case can be forked from it: "
                               "something has started one while torch's tests were imported. Use --spawn.")
        self.case, self.folder, self.limit_s = case, folder, limit_s
        self.begin = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            live(suite, case, folder, limit_s)
        self.ended = os.pidfd_open(self.process)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.begin > self.limit_s

    def finish(self) -> tuple[str, str]:
        """Returns (outcome, text), and kills the processes that are left of the case."""
        late = not select.select([self.ended], [], [], 0)[0]
        for victim in (self.process, -self.process) if late else (-self.process,):
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.close(self.ended)
        _, status = os.waitpid(self.process, 0)
        written = self.folder / "outcome"
        if written.exists():
            outcome, _, text = written.read_text().partition("\n")
            return outcome, text
        how = f"it took longer than {self.limit_s} s" if late else f"its process ended with status {status}"
        return FAILED, f"ConformanceError: no outcome: {how}\n{self.log()[-4000:]}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def live(suite, case: str, folder: Path, limit_s: float) -> None:
    """Runs a case in its forked process, and ends the process."""
    status = 1
    try:
        os.setsid()
        # torch ends ranks by SIGTERM.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The alarm also ends a process whose runner has died.
        signal.alarm(int(limit_s) + 30)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        temporary = folder / "temporary"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        outcome, text = outcome_of(suite.Cases(case))
        new = folder / "outcome.new"
        new.write_text(f"{outcome}\n{text}")
        new.replace(folder / "outcome")
        shutil.rmtree(temporary, ignore_errors=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def outcome_of(test: unittest.TestCase) -> tuple[str, str]:
    result = unittest.TestResult()
    test.run(result)
    failures = result.failures + result.errors + [(success, "it passed, but a failure was expected")
                                                  for success in result.unexpectedSuccesses]
    if failures:
        return FAILED, "\n".join(text for _, text in failures)
    if result.skipped:
        return SKIPPED, result.skipped[0][1]
    return PASSED, ""


def result_of(suite, way: str, running: Running) -> Result:
    outcome, text = running.finish()
    result = Result(running.case, way, outcome, seconds=round(time.monotonic() - running.begin, 1))
    if outcome == FAILED:
        result.detail = text
        result.reason, result.lines = what_failed(text)
    elif outcome == SKIPPED:
        logged = re.search(r"skipping test \w+ for following reason: (.*)", running.log())
        result.reason = logged[1] if "subprocess log" in text and logged else text
        result.lines = [line for line, reason in suite.SKIP_LINES.get(running.case, []) if reason == text]
    return result


def what_failed(text: str) -> tuple[str, list[int]]:
    """Returns the exception that ended the test on the first rank that reported one, and the lines of torch's module in
    its traceback."""
    _, *ranks = re.split(r"Process (\d+) exited with error code \d+ and exception:\n", text)
    trace = (ranks[1] if ranks else text).rpartition("Traceback (most recent call last):\n")[2]
    raised = re.search(r"^((?:\w+\.)*[A-Z]\w*)(?:: (.*))?$", trace, re.MULTILINE)
    reason = f"{raised[1]}: {raised[2]}" if raised else "no exception was reported"
    frames = re.findall(r'File ".*distributed_test\.py", line (\d+)', trace)
    return (f"rank {ranks[0]}: " if ranks else "") + reason, [int(line) for line in frames]
