"""The command `tutti zero`: shows when each rank of a training computed and waited, from a file of `optimizer.trace`: a
table of the steps, and a picture. The trace viewers of Chrome and Perfetto also open the file. Needs no torch.
"""
from __future__ import annotations

import argparse
import json
import statistics
from typing import Any, Iterator, NamedTuple

from torch_tutti._arguments import PICTURES, picture, whole

# The kinds of events, numbered as in include/tutti_zero.h.
USED, ASKED, READY, SETTLED, STEPPED, UPDATED, SUMMED, GATHERED = range(8)
# The rows of a rank in the picture. SLICES has the gathers, which bring the slices of other ranks.
PROGRAM, UPDATES, SUMS, SLICES = "program", "updates", "sums", "slices"
_COLOURS = {"forward": "#9dc3e6", "backward": "#2e75b6", "wait": "#c00000", "step": "#ffd966", "update": "#70ad47",
            "sum": "#f4b183", "slices": "#b4a7d6", "other": "#e7e6e6"}
LATE_MS = 0.1                           # a use that waited longer counts as late


class Event(NamedTuple):
    """An event of the core (tutti_zero_event). unit: its number, or -1. began, ended: ms since the trace began."""
    kind: int
    unit: int
    began: float
    ended: float
    bytes: int


class Bar(NamedTuple):
    """A bar of the picture. row: one of its rank's rows, such as PROGRAM. what: the key of its colour. name: the text
    of the bar. began, ended: ms."""
    row: str
    what: str
    name: str
    began: float
    ended: float
    bytes: int = 0


class Step(NamedTuple):
    """One step of one rank. In ms: length, its duration; parameters and gradients, its waits for them (together the
    exposed communication); updates, the duration of its updates. late: the number of uses that waited longer than
    LATE_MS. summed, gathered: bytes."""
    length: float
    parameters: float
    gradients: float
    updates: float
    late: int
    summed: int
    gathered: int


# ---- from events to bars ----
def bars_of_rank(events: list[Event], units: list[str]) -> list[Bar]:
    """Returns the bars of a rank's events. units: the names of the units. The program's row has no gaps after its first
    event: between two events it computes."""
    return [*_program_bars(events, units), *_background_bars(events, units)]


def _program_bars(events: list[Event], units: list[str]) -> Iterator[Bar]:
    """Yields the bars in the row of the program: forward, backward, waits, steps."""
    # (what, name) of the bar that lasts from one event to the next
    last_end, computing = None, ("other", "other")
    program_events = (event for event in events if event.kind <= STEPPED)
    for event in sorted(program_events, key=lambda event: (event.ended, event.began)):
        name = units[event.unit] if event.unit >= 0 else ""
        if event.kind == READY:
            computing = ("backward", f"backward {name}")
        if last_end is not None and event.began > last_end:
            yield Bar(PROGRAM, *computing, last_end, event.began)
        last_end = event.ended
        if event.kind == USED:
            yield Bar(PROGRAM, "wait", f"wait for {name}", event.began, event.ended)
            computing = ("forward", f"forward {name}")
        elif event.kind == ASKED:
            yield Bar(PROGRAM, "wait", f"wait for a buffer of {name}", event.began, event.ended)
        elif event.kind != READY:
            is_settle = event.kind == SETTLED
            yield Bar(PROGRAM, *(("wait", "settle") if is_settle else ("step", "step")), event.began, event.ended)
            computing = ("other", "other")


def _background_bars(events: list[Event], units: list[str]) -> Iterator[Bar]:
    """Yields the bars of updates, of sums of gradients, and of gathers of parameters (in the row SLICES), which run
    beside the program."""
    rows = {UPDATED: (UPDATES, "update"), SUMMED: (SUMS, "sum"), GATHERED: (SLICES, "slices")}
    for event in events:
        if event.kind in rows:
            row, what = rows[event.kind]
            yield Bar(row, what, f"{what} {units[event.unit]}", event.began, event.ended, event.bytes)


def steps_of(events: list[Event]) -> list[Step]:
    """Returns the steps of a rank, each from the end of one call of step() to the end of the next."""
    ends = sorted(event.ended for event in events if event.kind == STEPPED)
    return [_step(events, begin, end) for begin, end in zip(ends, ends[1:])]


def _step(events: list[Event], begin: float, end: float) -> Step:
    """Returns the step that lasts from `begin` to `end` (ms). Updates inside a call of step() do not count as
    waiting."""
    of_step = [event for event in events if begin < event.ended <= end]

    def duration(*kinds: int) -> float:
        """Returns the total time, in ms, of the step's events of these kinds."""
        return sum(event.ended - event.began for event in of_step if event.kind in kinds)

    step_calls = [event for event in of_step if event.kind == STEPPED]
    updates_in_calls = sum(event.ended - event.began for event in of_step if event.kind == UPDATED
                           and any(call.began <= event.began and event.ended <= call.ended for call in step_calls))
    late = sum(event.kind == USED and event.ended - event.began > LATE_MS for event in of_step)
    return Step(end - begin, duration(USED), duration(ASKED, SETTLED, STEPPED) - updates_in_calls, duration(UPDATED),
                late, *(sum(event.bytes for event in of_step if event.kind == kind) for kind in (SUMMED, GATHERED)))


# ---- the file ----
def chrome(ranks: list[list[Event]], units: list[str], reports: list[dict[str, Any]], missed: int) -> dict[str, Any]:
    """Returns the content of a trace file, in Chrome's Trace Event Format, with a process for each rank. Sums and
    slices overlap, so they are asynchronous events. The entry `tutti` has the events for read(). ranks: the events of
    each rank. units: the names of the units. reports: of each rank. missed: the number of events that were dropped."""
    trace_events: list[dict[str, Any]] = []
    for rank, events in enumerate(ranks):
        trace_events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        for bar_number, bar in enumerate(bars_of_rank(events, units)):
            common = {"pid": rank, "tid": bar.row, "cat": bar.what, "name": bar.name, "args": {"bytes": bar.bytes}}
            began, ended = round(bar.began * 1e3, 3), round(bar.ended * 1e3, 3)
            if bar.row in (PROGRAM, UPDATES):
                trace_events.append({**common, "ph": "X", "ts": began, "dur": round(ended - began, 3)})
            else:
                trace_events += [{**common, "ph": "b", "id": bar_number, "ts": began},
                                 {**common, "ph": "e", "id": bar_number, "ts": ended}]
    return {"traceEvents": trace_events, "displayTimeUnit": "ms",
            "tutti": {"version": 1, "units": units, "ranks": ranks, "reports": reports, "missed": missed}}


class Trace(NamedTuple):
    """The content of a trace file; see chrome()."""
    units: list[str]
    ranks: list[list[Event]]
    reports: list[dict[str, Any]]
    missed: int


def read(path: str) -> Trace:
    """Reads a trace file that chrome() has filled. Raises ValueError with the problem if it is not one."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)["tutti"]
        if content["version"] != 1:
            raise ValueError(f"{path} is of version {content['version']}; this command reads version 1")
        return Trace(content["units"], [[Event(*event) for event in events] for events in content["ranks"]],
                     content["reports"], content["missed"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{path} is not a trace of torch_tutti.zero: write one with `with optimizer.trace(PATH):`"
                         ) from None


# ---- the table ----
def table(trace: Trace) -> list[str]:
    """Returns the lines of the table: a row for each step, with the means over the ranks, then the median step, the
    memory and a warning if events were dropped. Raises ValueError without a complete step."""
    steps_of_ranks = [steps_of(events) for events in trace.ranks]
    count = min(map(len, steps_of_ranks), default=0)
    if not count:
        raise ValueError("the trace has no complete step: call step() at least twice in the block")
    means = [Step(*(statistics.fmean(values) for values in zip(*(steps[index] for steps in steps_of_ranks))))
             for index in range(count)]
    lines = [f"{len(trace.ranks)} ranks, {len(trace.units)} units, {count} steps; ms and MB, means over the ranks", "",
             f"{'step':>6}{'length':>10}{'computing':>11}{'waited for':>12}{'waited for':>12}{'exposed':>9}"
             f"{'updating':>10}{'late':>6}{'summed':>9}{'slices':>9}",
             f"{'':>27}{'parameters':>12}{'gradients':>12}"]
    for number, step in enumerate(means, 1):
        lines.append(_row(str(number), step))
    lines += [_row("median", Step(*(statistics.median(values) for values in zip(*means)))), ""]
    memory = {name: statistics.fmean(report[f"{name}_bytes"] for report in trace.reports) / 1e6
              for name in ("parameter", "gradient", "state")}
    lines.append("memory of a rank, MB: " + ", ".join(f"{value:.1f} {name}" for name, value in zip(
        ("parameters", "gradients", "optimizer state"), memory.values())))
    if trace.missed:
        lines.append(f"{trace.missed} events were dropped: trace fewer steps, or pass a larger events=")
    return lines


def _row(name: str, step: Step) -> str:
    """Returns the line of one step. name: its number, or "median"."""
    exposed = step.parameters + step.gradients
    computing = max(0.0, step.length - exposed)
    return (f"{name:>6}{step.length:>10.2f}{computing:>11.2f}{step.parameters:>12.2f}{step.gradients:>12.2f}"
            f"{exposed / step.length:>9.1%}{step.updates:>10.2f}{step.late:>6.0f}{step.summed / 1e6:>9.2f}"
            f"{step.gathered / 1e6:>9.2f}")


# ---- the picture ----
def draw(trace: Trace, path: str, steps: int) -> None:
    """Draws the last `steps` steps of all ranks, four rows for each rank. Raises ImportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    ends = sorted(event.ended for event in trace.ranks[0] if event.kind == STEPPED)
    if len(ends) < 2:
        raise ValueError("the trace has no complete step: call step() at least twice in the block")
    begin, end = ends[max(0, len(ends) - 1 - steps)], ends[-1]
    rows = [(rank, row) for rank in range(len(trace.ranks)) for row in (PROGRAM, UPDATES, SUMS, SLICES)]
    figure = Figure(figsize=(12, 1.2 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    # {what: one of its bars}, for the legend
    drawn_bars: dict[str, Any] = {}
    for rank, events in enumerate(trace.ranks):
        for bar in bars_of_rank(events, trace.units):
            if bar.ended < begin or bar.began > end:
                continue
            drawn = axes.broken_barh([(bar.began - begin, bar.ended - bar.began)],
                                     (rows.index((rank, bar.row)) - 0.4, 0.8), facecolors=_COLOURS[bar.what],
                                     edgecolors="white", linewidth=0.3, alpha=1 if bar.row == PROGRAM else 0.5)
            drawn_bars.setdefault(bar.what, drawn)
    axes.set(xlim=(0, end - begin), ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)), xlabel="ms")
    axes.set_yticklabels([f"rank {rank} {row}" if row == PROGRAM else row for rank, row in rows], fontsize=8)
    axes.legend(drawn_bars.values(), drawn_bars, loc="upper center", bbox_to_anchor=(0.5, 1.12), ncol=len(drawn_bars),
                fontsize=8)
    figure.savefig(path, dpi=150)


# ---- the command ----
def _run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    trace = read(options.trace)
    print("\n".join(table(trace)))
    if options.picture:
        draw(trace, options.picture, options.steps)
    return 0


def add_parser(commands: Any) -> None:
    """Adds `zero` to the commands of `tutti`. commands: the subparsers of argparse."""
    zero = commands.add_parser(
        "zero", help="show what a training with torch_tutti.zero waited for, from a trace",
        description="Reads what `with optimizer.trace(PATH):` has written, and shows for each step how long it "
                    "computed and what it waited for. The file itself opens in https://ui.perfetto.dev and in "
                    "chrome://tracing.")
    zero.add_argument("trace", help="the file")
    zero.add_argument("--picture", type=picture, metavar="FILE",
                      help=f"plot the last steps into this file ({', '.join(PICTURES)})")
    zero.add_argument("--steps", type=whole(1), default=2, help="number of steps in the plot (default: %(default)s)")
    zero.set_defaults(run=_run)
