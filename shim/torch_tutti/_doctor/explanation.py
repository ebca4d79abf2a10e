"""Explains what has happened to a job, from its records: the causes, each with a remedy. An error that follows from
another one's cause is left out."""
from __future__ import annotations

import re
import signal
from typing import Callable, Iterator

from torch_tutti import _trace
from torch_tutti._doctor.findings import PROBLEM, WARNING, Finding
from torch_tutti._doctor.records import Records, place_text

_WHERE = r"(?P<where>.+?)"
_MISSING = re.compile(rf"rank (?P<waiter>\d+) reached the timeout of (?P<ms>\d+) ms in {_WHERE}: this call has not "
                      r"been made by rank (?P<ranks>\d+(?:, \d+)*)(?P<rest>.*)", re.DOTALL)
_DIED = re.compile(r"rank (?P<rank>\d+) of (?P<group>.+?) \((?P<process>process .+?)\) died, seen by rank "
                   rf"(?P<waiter>\d+)(?: in {_WHERE})?; ")
_LEFT = re.compile(r"rank (?P<rank>\d+) of (?P<group>.+?) has ended or destroyed its group, and rank (?P<waiter>\d+) "
                   rf"waits for it(?: in {_WHERE})?; ")
_DIFFER = re.compile(r"ranks disagree about (?P<where>operation \d+ of .+?): rank (?P<rank>\d+) calls (?P<call>.+?), "
                     r"but rank (?P<other>\d+) (?P<other_call>calls .+?|makes another call.*?); all ranks")
# The end of a rank by a launcher that has seen another one end is no cause.
_BY_LAUNCHER = -signal.SIGTERM
_REMEDY_OF_SIGNAL = {
    signal.SIGKILL: "the kernel may have been short of memory (dmesg, the limit of the container), or someone killed "
                    "it",
    signal.SIGSEGV: "a fault in native code: run it with python -X faulthandler",
    signal.SIGABRT: "native code gave up: see its last lines",
    signal.SIGBUS: "shared memory ran out, or a mapped file was cut: see df /dev/shm and the limit of the container",
}


def explain(records: Records) -> list[Finding]:
    """Returns the causes, the first ones first, and the warnings of the logs."""
    found: dict[str, Finding] = {}
    for step in (_own_exceptions, _deaths, _differences, _missing_calls, _departures, _others):
        for subject, finding in step(records, found):
            found.setdefault(subject, finding)
    if not found:
        found = {line: Finding(PROBLEM, "traces", line, "docs/debugging.md") for line in _conclusions(records)}
    return [*found.values(), *_log_warnings(records)]


def describe_traces(records: Records) -> str:
    """Returns the report of `tutti trace`, or "" without traces."""
    return _trace.describe(_trace.Traces("", records.traces)) if records.traces else ""


Step = Iterator[tuple[str, Finding]]


# ---- the causes, each for a subject, such as "rank 1", of which one is enough ----
def _own_exceptions(records: Records, _: dict[str, Finding]) -> Step:
    """Yields exceptions that are not errors of tutti: the rank failed by itself. An exception that comes after an error
    of tutti on its rank is left out."""
    failed: set[int | None] = set()
    for error in records.errors:
        if error.is_of_tutti:
            failed.add(error.rank)
        elif error.rank is None or error.rank not in failed:
            subject = "a rank" if error.rank is None else f"rank {error.rank}"
            at, colon = f", at {error.place}" if error.place else "", ": " if error.text else ""
            yield subject, Finding(PROBLEM, subject, f"raised {error.kind}{colon}{error.text}{at}",
                                   "correct this first; errors of other ranks that wait for it follow from it")


def _deaths(records: Records, _: dict[str, Finding]) -> Step:
    for match in _matches(records, _DIED):
        rank = int(match["rank"])
        code = records.exits.get(rank)
        waits = f"; rank {match['waiter']} waited for it" + (f" in {match['where']}" if match["where"] else "")
        yield f"rank {rank}", Finding(PROBLEM, f"rank {rank}", f"died ({match['process']}{_exit_text(code)}){waits}"
                                      + _place(records, int(match["waiter"]), match.string), _exit_remedy(code))
    for rank, code in records.exits.items():
        if code < 0 and code != _BY_LAUNCHER:
            yield f"rank {rank}", Finding(PROBLEM, f"rank {rank}", f"died{_exit_text(code)}", _exit_remedy(code))


def _differences(records: Records, _: dict[str, Finding]) -> Step:
    for match in _matches(records, _DIFFER):
        rank, other = int(match["rank"]), int(match["other"])
        text = f"{match['where']} differs: rank {rank} calls {match['call']}{_place(records, rank, match.string)}, " \
               f"rank {other} {match['other_call']}" + _place_in(records, other, match["where"])
        yield match["where"], Finding(PROBLEM, "other call", text, "find the branch of the program where these ranks "
                                      "differ: all ranks must make the same calls in the same order")


def _missing_calls(records: Records, _: dict[str, Finding]) -> Step:
    for match in _matches(records, _MISSING):
        ranks = match["ranks"].split(", ")
        subject = f"rank{'s' * (len(ranks) > 1)} {match['ranks']}"
        text = f"did not make the call {match['where']}, for which rank {match['waiter']} waited " \
               f"{int(match['ms']) / 1000:g} s" + _place(records, int(match["waiter"]), match.string)
        lasts = "".join(_last_call(records, int(rank)) for rank in ranks)
        yield subject, Finding(PROBLEM, subject, f"{text}{match['rest'].rstrip()}{lasts}",
                               f"find out what {subject} did instead: its own output, or tutti status while it hangs")


def _departures(records: Records, found: dict[str, Finding]) -> Step:
    for match in _matches(records, _LEFT):
        where = f", while rank {match['waiter']} waited for it" + (f" in {match['where']}" if match["where"] else "")
        subject = f"rank {match['rank']}"
        if not _is_explained(int(match["rank"]), found):
            yield subject, Finding(PROBLEM, subject, f"has ended or destroyed its group{where}"
                                   + _place(records, int(match["waiter"]), match.string),
                                   "see its own output: all ranks must make the same calls before they end")


def _others(records: Records, found: dict[str, Finding]) -> Step:
    """Yields errors of tutti of other kinds, and exit codes, if no cause explains them."""
    if found:
        return
    for error in records.errors:
        subject = "a rank" if error.rank is None else f"rank {error.rank}"
        at = f", at {error.place}" if error.place else ""
        yield error.text, Finding(PROBLEM, subject, f"{error.text}{at}", "docs/errors.md explains the errors")
    for rank, code in records.exits.items():
        if code not in (0, _BY_LAUNCHER) and not records.errors:
            yield f"rank {rank}", Finding(PROBLEM, f"rank {rank}", f"ended{_exit_text(code)}", "see its own output")


def _conclusions(records: Records) -> list[str]:
    """Returns the conclusions from the traces of a job that gave no error."""
    return [line.strip().removeprefix("=> ") for line in describe_traces(records).splitlines()
            if line.strip().startswith("=>")]


def _log_warnings(records: Records) -> list[Finding]:
    return [Finding(WARNING, "log", text) for text in dict.fromkeys(records.warnings)]


# ---- parts of texts ----
def _matches(records: Records, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yields a match for each different text of an error."""
    for text in dict.fromkeys(error.text for error in records.errors):
        if match := pattern.search(text):
            yield match


def _is_explained(rank: int, found: dict[str, Finding]) -> bool:
    return any(re.fullmatch(rf"ranks? (?:\d+, )*{rank}(?:, \d+)*", subject) for subject in found)


def _place(records: Records, rank: int, text: str) -> str:
    """Returns where a rank made the call that failed with this text, as ", called at train.py:9 (step)", or ""."""
    return next((f", called at {error.place}" for error in records.errors
                 if error.rank == rank and error.place and error.text == text), "")


def _place_in(records: Records, rank: int, where: str) -> str:
    """Returns the same for the error of a rank about an operation that another text describes."""
    return next((f", called at {error.place}" for error in records.errors
                 if error.rank == rank and error.place and f"{where}:" in error.text), "")


def _last_call(records: Records, rank: int) -> str:
    """Returns the last call in the trace of a rank, as text, or ""."""
    entries = records.traces.get(rank, {}).get("entries", [])
    if not entries:
        return ""
    at = place_text(_trace.frame_of(entries[-1]))
    return f"; the last call of rank {rank} was {_trace.kind_of(entries[-1])}" + (f" at {at}" if at else "")


def _exit_text(code: int | None) -> str:
    if code is None:
        return ""
    if code >= 0:
        return f", exit code {code}"
    try:
        return f", by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f", by signal {-code}"


def _exit_remedy(code: int | None) -> str:
    return _REMEDY_OF_SIGNAL.get(-(code or 0), "see its exit code and last lines; 137 or -9 often means that the "
                                 "kernel was short of memory")
