"""Draws a schedule: ranks from top to bottom, steps from left to right, an arrow to every step from those it waits for.

Reads the text of `torch_tutti.schedule`. A step stands one column to the right of the last thing it waits for: the step
before it on its rank, steps of other ranks whose results it reads, and the send of a message that it needs. A receive
stands where it is posted; its send is the k-th to its rank when it is the k-th from there. So the number of columns is
the longest chain of steps. Needs matplotlib.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field

_STEP = re.compile(r"\s*(\d+):(\d+)\s+(\S.*)$")
_NOTES = re.compile(r"\s{2,}|(?<=\S) (?=(?:after|slot free|every tile|prelude|raw|finish|published)\b)")
_COLOURS = {"send": "#f4b183", "recv": "#f8d7a8", "reduce": "#9dc3e6", "copy": "#c5e0b4", "other": "#d9d9d9"}


@dataclass
class Step:
    """One step of one rank. `waits` are those that must come before it, `send` is that of a receive."""
    rank: int
    number: int
    text: str
    kind: str
    waits: list[tuple[int, int]] = field(default_factory=list)
    send: tuple[int, int] | None = None
    column: int = -1


def _kind(text: str) -> str:
    if text.startswith(("send", "recv")):
        return text[:4]
    if " = " not in text:
        return "other"
    return "reduce" if " + " in text else "copy"


def _match(steps: dict[tuple[int, int], Step]) -> None:
    """Gives every receive its send."""
    sends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for key, step in steps.items():
        if step.kind == "send":
            sends.setdefault((step.rank, int(step.text.split()[-1])), []).append(key)
    for step in steps.values():
        if step.kind == "recv":
            step.send = sends[int(step.text.split()[-1]), step.rank].pop(0)


def parse(text: str) -> dict[tuple[int, int], Step]:
    """The steps of a printed schedule, by rank and number, with what each waits for."""
    lines = [found for line in text.splitlines()[1:] if (found := _STEP.match(line))]
    steps: dict[tuple[int, int], Step] = {}
    notes: dict[tuple[int, int], str] = {}
    for found in lines:
        key = int(found[1]), int(found[2])
        what, *rest = _NOTES.split(found[3].strip(), maxsplit=1)
        steps[key], notes[key] = Step(*key, what, _kind(what)), " ".join(rest)
    _match(steps)
    for (rank, number), step in steps.items():
        if number:
            step.waits.append((rank, number - 1))
        for after in re.findall(r"(?<!free )\bafter ((?:message \d+|\d+:\d+|, )+)", notes[rank, number]):
            step.waits += [(int(a), int(b)) for a, b in re.findall(r"(\d+):(\d+)", after)]
            awaited = [steps[rank, int(n)].send for n in re.findall(r"message (\d+)", after)]
            step.waits += [send for send in awaited if send]
    return steps


def place(steps: dict[tuple[int, int], Step]) -> int:
    """Gives every step its column and returns how many there are."""
    moved = True
    while moved:
        moved = False
        for step in steps.values():
            column = 1 + max((steps[w].column for w in step.waits if w in steps), default=-1)
            if column > step.column and column <= len(steps):
                step.column, moved = column, True
    return 1 + max((step.column for step in steps.values()), default=-1)


def draw(text: str, path: str) -> None:
    """Writes the picture to `path`, in the format that its ending names. Raises ImportError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    steps = parse(text)
    columns, ranks = place(steps), 1 + max((step.rank for step in steps.values()), default=-1)
    labels = {key: re.sub(r" ([=+]|->|<-) ", r"\n\1 ", step.text) for key, step in steps.items()}
    height = 0.35 + 0.13 * (1 + max(label.count("\n") for label in labels.values()))
    figure = Figure(figsize=(1.5 + 1.2 * columns, 1.2 + height * ranks), layout="constrained")
    axes = figure.add_subplot()
    for key, step in steps.items():
        for wait in [step.send] if step.send else step.waits:
            if wait[0] != step.rank and (step.send or steps[wait].kind != "send"):
                axes.annotate("", (step.column, step.rank), (steps[wait].column, wait[0]), zorder=1,
                              arrowprops={"arrowstyle": "->", "color": "#7f7f7f", "lw": 0.8,
                                          "shrinkB": 12 + 6 * labels[key].count("\n")})
        axes.text(step.column, step.rank, labels[key], ha="center", va="center", fontsize=7, zorder=2,
                  bbox={"boxstyle": "round", "fc": _COLOURS[step.kind], "ec": "#595959", "lw": 0.6})
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(ranks - 0.4, -0.6), xticks=range(columns), yticks=range(ranks),
             xlabel="step", title=text.partition("\n")[0])
    axes.set_yticklabels([f"rank {rank}" for rank in range(ranks)])
    figure.savefig(path, dpi=150)
