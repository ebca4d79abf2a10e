"""Summarises the results of the cases: a few lines for the terminal, and docs/conformance.md. The document changes only
if an outcome changes."""
from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path

from conformance.known_failures import KNOWN
from conformance.results import FAILED, PASSED, SKIPPED, Result, Results
from conformance.ways import WAYS, WORLD_SIZE, Way

SOURCE = "torch/testing/_internal/distributed/distributed_test.py"


def read(folder: Path, way: Way, pattern: str = "*") -> dict[str, Result]:
    results = Results(folder, way.name)
    names = sorted(path.stem for path in results.folder.glob("*.json"))
    return {name: result for name in names
            if fnmatch.fnmatch(name, pattern) and (result := results.read(name)) is not None}


def counts(results: dict[str, Result]) -> Counter:
    return Counter(result.outcome for result in results.values())


def print_summary(folder: Path, chosen: list[Way], pattern: str) -> int:
    """Prints a line for each way, unexpected outcomes, and a closing line. Returns the exit status."""
    total, unknown = Counter(), 0
    print()
    for way in chosen:
        results = read(folder, way, pattern)
        counted = counts(results)
        total += counted
        known = {case for name, case in KNOWN if name == way.name}
        failed = [case for case, result in results.items() if result.outcome == FAILED]
        print(f"{way.title:15} {counted[PASSED]:3} passed, {counted[SKIPPED]:3} skipped, {counted[FAILED]:3} failed, "
              f"{len(known.intersection(failed))} of them known")
        for case in failed:
            if case not in known:
                unknown += 1
                print(f"    failed: {case}: {results[case].reason}")
        for case in sorted(known & results.keys() - set(failed)):
            print(f"    known to fail, but {results[case].outcome}: {case}; take it out of known_failures.py")
    print(f"conformance: {total[PASSED]} passed, {total[SKIPPED]} skipped, {total[FAILED] - unknown} failed as known, "
          f"{unknown} failed otherwise")
    return 1 if unknown or not total else 0


def print_differences(one: Path, several: Path, chosen: list[Way], pattern: str) -> int:
    """Prints the cases that end differently over several hosts than on one. Returns the exit status."""
    differences = total = 0
    for way in chosen:
        alone, apart = (read(folder, way, pattern) for folder in (one, several))
        for case in sorted(alone.keys() | apart.keys()):
            total += 1
            ends = [found[case].outcome if case in found else "not run" for found in (alone, apart)]
            if ends[0] != ends[1]:
                differences += 1
                reason = apart[case].reason if case in apart else ""
                print(f"    {way.title}: {case}: {ends[0]} on one host, {ends[1]} over several: {reason}")
    print(f"hosts: {total - differences} of {total} cases end as on one host")
    return 1 if differences or not total else 0


# ---- the document ----
def write(folder: Path, document: Path) -> None:
    results = {way.name: read(folder, way) for way in WAYS.values()}
    reasons = skip_reasons(results)
    parts = [opening(results), figures(results), failures(results), skips(reasons), every_case(results, list(reasons))]
    document.write_text("\n\n".join(parts) + "\n")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def opening(results: dict[str, dict[str, Result]]) -> str:
    return f"""# Conformance

PyTorch's own test of its backends, `DistributedTest` from the wheel of torch {version("torch")}: {len(results["gloo"])}
cases, {WORLD_SIZE} ranks, CPU tensors, no GPU. `script/conformance` runs them and writes this file; no test is edited.
Ranks are forked from a process that has only imported the tests, and a run takes minutes; torch's own way,
`--spawn`, takes about half an hour for each way on two processors.

Many cases are reserved to a backend by its name. So they run in four ways: on gloo, for comparison; on tutti while the
tests read the name gloo, or mpi, which enables the cases reserved to these names; and on tutti under its own name.
The name "mpi" also enables the tests of groups, which torch skips with fewer than eight ranks of any other backend
(torch/testing/_internal/common_distributed.py, skip_if_small_worldsize). A case counts as passed only if every rank
ends well; torch itself looks at rank 0. "Line" is a line of {SOURCE}."""


def figures(results: dict[str, dict[str, Result]]) -> str:
    rows = []
    for name, way in WAYS.items():
        counted = counts(results[name])
        rows.append([way.title, way.declared, way.runs, *(str(counted[kind]) for kind in (PASSED, FAILED, SKIPPED))])
    judged = {case for case, result in results["gloo"].items() if result.outcome == PASSED}
    ours = {case for case, result in results["as-gloo"].items() if result.outcome == PASSED}
    summary = (f"Of the {len(judged)} cases that gloo passes, tutti as gloo passes {len(judged & ours)}, and "
               f"{len(ours - judged)} more.")
    return "## Figures\n\n" + table(["way", "name read by the tests", "what runs", "passed", "failed", "skipped"],
                                    rows) + "\n\n" + summary


def failures(results: dict[str, dict[str, Result]]) -> str:
    rows = []
    for name, way in WAYS.items():
        for case, result in results[name].items():
            if result.outcome == FAILED:
                line = ", ".join(map(str, result.lines or []))
                why = KNOWN.get((name, case), f"not expected: {result.reason}")
                rows.append([case, way.title, line, why])
    return "## What fails\n\n" + (table(["case", "way", "line", "why"], rows) if rows else "Nothing.")


def skip_reasons(results: dict[str, dict[str, Result]]) -> dict[str, tuple[set[int], Counter]]:
    """Returns {reason: (lines, {way: number of cases})}, the most frequent reason first."""
    lines, numbers = defaultdict(set), defaultdict(Counter)
    for name, way_results in results.items():
        for result in way_results.values():
            if result.outcome == SKIPPED:
                lines[result.reason].update(result.lines or [])
                numbers[result.reason][name] += 1
    order = sorted(numbers, key=lambda reason: (-numbers[reason].total(), reason))
    return {reason: (lines[reason], numbers[reason]) for reason in order}


def skips(reasons: dict[str, tuple[set[int], Counter]]) -> str:
    rows = [[str(number), reason, *(str(counted[name] or "") for name in WAYS), ", ".join(map(str, sorted(lines)))]
            for number, (reason, (lines, counted)) in enumerate(reasons.items(), 1)]
    head = ["no.", "reason", *(way.title for way in WAYS.values()), "lines"]
    return ("## What torch skips\n\nEach reason as torch gives it, how many cases it skips in each way, and the lines "
            "of the decorators. A reason that only the last way has is of cases that are reserved to other backends by "
            "name.\n\n"
            + table(head, rows))


def every_case(results: dict[str, dict[str, Result]], reasons: list[str]) -> str:
    number = {reason: str(index) for index, reason in enumerate(reasons, 1)}

    def cell(result: Result | None) -> str:
        if result is None:
            return ""
        return f"skipped ({number[result.reason]})" if result.outcome == SKIPPED else result.outcome

    rows = [[case, *(cell(results[name].get(case)) for name in WAYS)] for case in results["gloo"]]
    return ("## Every case\n\nThe number behind \"skipped\" is that of the reason above. An empty cell: the way does "
            "not run this case.\n\n" + table(["case", *(way.title for way in WAYS.values())], rows))
