"""Draws a schedule: ranks from top to bottom, steps from left to right, an arrow to every step from those it waits for.

Reads the text of `torch_tutti.schedule`. A step stands one column to the right of the last thing it waits for: the step
before it on its rank, steps of other ranks whose results it reads, and the send of a message that it needs. A receive
stands where it is posted. The k-th receive of a rank from a peer gets the k-th send of that peer to the rank. So the
number of columns is the longest chain of steps. Needs matplotlib.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field

_STEP = re.compile(r"\s*(\d+):(\d+)\s+(\S.*)$")
_NOTES = re.compile(r"\s{2,}|(?<=\S) (?=(?:after|slot free|every tile|prelude|raw|finish|published)\b)")
_COLOURS = {"send": "#f4b183", "recv": "#f8d7a8", "reduce": "#9dc3e6", "copy": "#c5e0b4", "other": "#d9d9d9"}


@dataclass
class Step:
    """One step of one rank. waits: (rank, number) of the steps that must come before it. send: of a receive, the step
    that sends its message. column: its place in the picture, -1 before place()."""
    rank: int
    number: int
    text: str
    kind: str
    waits: list[tuple[int, int]] = field(default_factory=list)
    send: tuple[int, int] | None = None
    column: int = -1


def _kind(text: str) -> str:
    """Returns the key of a step's colour in _COLOURS. text: the step without its notes."""
    if text.startswith(("send", "recv")):
        return text[:4]
    if " = " not in text:
        return "other"
    return "reduce" if " + " in text else "copy"


def _match(steps: dict[tuple[int, int], Step]) -> None:
    """Sets the send of every receive."""
    sends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step_id, step in steps.items():
        if step.kind == "send":
            sends.setdefault((step.rank, int(step.text.split()[-1])), []).append(step_id)
    for step in steps.values():
        if step.kind == "recv":
            step.send = sends[int(step.text.split()[-1]), step.rank].pop(0)


def parse(text: str) -> dict[tuple[int, int], Step]:
    """Returns the steps of a printed schedule, by (rank, number), with the steps that each waits for."""
    lines = [match for line in text.splitlines()[1:] if (match := _STEP.match(line))]
    steps: dict[tuple[int, int], Step] = {}
    notes: dict[tuple[int, int], str] = {}
    for match in lines:
        step_id = int(match[1]), int(match[2])
        operation, *note = _NOTES.split(match[3].strip(), maxsplit=1)
        steps[step_id], notes[step_id] = Step(*step_id, operation, _kind(operation)), " ".join(note)
    _match(steps)
    for (rank, number), step in steps.items():
        if number:
            step.waits.append((rank, number - 1))
        for after in re.findall(r"(?<!free )\bafter ((?:message \d+|\d+:\d+|, )+)", notes[rank, number]):
            step.waits += [(int(other_rank), int(other_number))
                           for other_rank, other_number in re.findall(r"(\d+):(\d+)", after)]
            awaited = [steps[rank, int(message)].send for message in re.findall(r"message (\d+)", after)]
            step.waits += [send for send in awaited if send]
    return steps


def place(steps: dict[tuple[int, int], Step]) -> int:
    """Sets the column of every step, to the right of all steps that it waits for. Returns the number of columns."""
    has_moved = True
    while has_moved:
        has_moved = False
        for step in steps.values():
            column = 1 + max((steps[wait].column for wait in step.waits if wait in steps), default=-1)
            if column > step.column and column <= len(steps):
                step.column, has_moved = column, True
    return 1 + max((step.column for step in steps.values()), default=-1)


def draw(text: str, path: str) -> None:
    """Draws a printed schedule into a file, in the format of its ending. text: of torch_tutti.schedule(). Raises
    ImportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    steps = parse(text)
    columns, ranks = place(steps), 1 + max((step.rank for step in steps.values()), default=-1)
    labels = {step_id: re.sub(r" ([=+]|->|<-) ", r"\n\1 ", step.text) for step_id, step in steps.items()}
    height = 0.35 + 0.13 * (1 + max(label.count("\n") for label in labels.values()))
    figure = Figure(figsize=(1.5 + 1.2 * columns, 1.2 + height * ranks), layout="constrained")
    axes = figure.add_subplot()
    for step_id, step in steps.items():
        for wait in [step.send] if step.send else step.waits:
            if wait[0] != step.rank and (step.send or steps[wait].kind != "send"):
                axes.annotate("", (step.column, step.rank), (steps[wait].column, wait[0]), zorder=1,
                              arrowprops={"arrowstyle": "->", "color": "#7f7f7f", "lw": 0.8,
                                          "shrinkB": 12 + 6 * labels[step_id].count("\n")})
        axes.text(step.column, step.rank, labels[step_id], ha="center", va="center", fontsize=7, zorder=2,
                  bbox={"boxstyle": "round", "fc": _COLOURS[step.kind], "ec": "#595959", "lw": 0.6})
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(ranks - 0.4, -0.6), xticks=range(columns), yticks=range(ranks),
             xlabel="step", title=text.partition("\n")[0])
    axes.set_yticklabels([f"rank {rank}" for rank in range(ranks)])
    figure.savefig(path, dpi=150)
