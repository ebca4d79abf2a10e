"""The findings of `tutti doctor`: their text, their JSON and the exit code that follows from them."""
from __future__ import annotations

from typing import Any, Iterable, NamedTuple

FORMAT = 1
OK, WARNING, PROBLEM = "ok", "warning", "problem"
# The width of the columns of levels and of checks.
_LEVEL_WIDTH, _CHECK_WIDTH = 8, 15


class Finding(NamedTuple):
    """The result of one check. level: OK, WARNING or PROBLEM. remedy: what to do, "" if nothing need be done."""
    level: str
    check: str
    found: str
    remedy: str = ""


def lines(findings: Iterable[Finding]) -> list[str]:
    """Returns the findings as lines of text; a remedy is on the next line, after =>."""
    made = []
    for finding in findings:
        made.append(f"{finding.level:{_LEVEL_WIDTH}} {finding.check:{_CHECK_WIDTH}} {finding.found}")
        if finding.remedy:
            made.append(f"{'':{_LEVEL_WIDTH + 1 + _CHECK_WIDTH}} => {finding.remedy}")
    return made


def summary(findings: Iterable[Finding]) -> str:
    """Returns a line with the numbers of problems and warnings."""
    levels = [finding.level for finding in findings]
    counts = [f"{levels.count(level)} {level}{'s' * (levels.count(level) != 1)}" for level in (PROBLEM, WARNING)]
    return ", ".join(counts)


def as_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """Returns the findings as values of JSON."""
    return [finding._asdict() for finding in findings]


def from_json(values: Iterable[dict[str, Any]]) -> list[Finding]:
    """Returns the findings whose values of JSON are given."""
    return [Finding(**value) for value in values]


def exit_code(findings: Iterable[Finding]) -> int:
    """Returns 1 if a finding is a problem, else 0."""
    return int(any(finding.level == PROBLEM for finding in findings))
