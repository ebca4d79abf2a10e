"""`tutti pipeline`: prints and draws the actions and the waiting time of a pipeline's schedule. Needs no torch."""
from __future__ import annotations

import argparse
from typing import Any

from torch_tutti._arguments import PICTURES, picture, whole
from torch_tutti._pipeline import Pipeline

_COLOURS = {"F": "#9dc3e6", "B": "#2e75b6", "I": "#2e75b6", "W": "#a9d18e"}
MOST_SHOWN = 40                         # actions in a line of the report


def formula(pipeline: Pipeline) -> float:
    """Returns the share of the time in which a rank waits, if all stages take equally long, and a forward as long as
    each half of a backward."""
    ranks, microbatches, chunks = pipeline.ranks, pipeline.microbatches, pipeline.chunks
    # the waiting time of a rank, in times of a forward
    idle = {"naive": ranks * microbatches * 3 - microbatches * 3, "gpipe": (ranks - 1) * 3, "1f1b": (ranks - 1) * 3,
            "interleaved": (ranks - 1) * 3, "zb-h1": ranks - 1, "zb-v": ranks - 1,
            "dualpipe-v": ranks - 1}[pipeline.name]
    return idle / (idle + 3 * microbatches * chunks)


def report(pipeline: Pipeline, options: argparse.Namespace) -> list[str]:
    """Returns the lines to print: for each rank its stages, waiting time, kept activations and first MOST_SHOWN
    actions, then the time of the whole step."""
    timing = pipeline.time(options.forward, options.backward, options.weight, options.message)
    lines = [f"{pipeline.name}: {pipeline.ranks} ranks, {pipeline.chunks} "
             f"stage{'s' if pipeline.chunks > 1 else ''} on each, {pipeline.microbatches} microbatches", "",
             f"{'rank':>4}  {'stages':<12}{'bubble':>8}{'held':>6}  actions"]
    for rank in range(pipeline.ranks):
        actions = list(map(str, pipeline.actions(rank)))
        left_out = f" … {len(actions) - MOST_SHOWN} more" if len(actions) > MOST_SHOWN else ""
        stages = ", ".join(map(str, pipeline.stages_of(rank)))
        lines.append(f"{rank:>4}  {stages:<12}{timing.bubbles[rank]:>8.1%}{timing.held[rank]:>6}  "
                     f"{' '.join(actions[:MOST_SHOWN])}{left_out}")
    is_equal = len({options.forward, options.backward, options.weight}) == 1 and options.forward and not options.message
    least = " at least" if pipeline.name == "zb-v" else ""
    by_formula = f"; by the formula for equal stages{least} {formula(pipeline):.1%}" if is_equal else ""
    return [*lines, "", f"takes {timing.makespan:g}; bubble {max(timing.bubbles):.1%} at most{by_formula}; held: "
                        "the most activations (of a microbatch in a stage) that a rank keeps at a time"]


def draw(pipeline: Pipeline, options: argparse.Namespace) -> None:
    """Draws what each rank does over time, a row for each, into options.picture. Raises ImportError without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install matplotlib") from None
    timing = pipeline.time(options.forward, options.backward, options.weight, options.message)
    lengths = {"F": options.forward, "I": options.backward, "W": options.weight,
               "B": options.backward + options.weight}
    figure = Figure(figsize=(12, 0.8 + 0.5 * pipeline.ranks), layout="constrained")
    axes = figure.add_subplot()
    for rank in range(pipeline.ranks):
        for action, end in zip(pipeline.actions(rank), timing.ends[rank]):
            length = lengths[action.work]
            is_later = action.stage >= pipeline.ranks   # not the first stage of its rank: drawn paler
            axes.broken_barh([(end - length, length)], (rank - 0.42, 0.84), facecolors=_COLOURS[action.work],
                             edgecolors="white", linewidth=0.8, alpha=0.65 if is_later else 1)
            if timing.makespan < 80 * options.forward:
                axes.text(end - length / 2, rank, str(action.microbatch), ha="center", va="center", fontsize=7,
                          color="white" if action.work in "BI" and not is_later else "black")
    axes.set(xlim=(0, timing.makespan), ylim=(pipeline.ranks - 0.5, -0.5), yticks=range(pipeline.ranks), xlabel="time")
    axes.set_title(f"{pipeline.name}, {pipeline.microbatches} microbatches: bubble {max(timing.bubbles):.1%}",
                   loc="left")
    axes.set_yticklabels([f"rank {rank}" for rank in range(pipeline.ranks)])
    labels = {"F": "forward", "B": "backward", "I": "backward, of inputs", "W": "of weights"}
    drawn = [work for work in labels if any(action.work == work for action in pipeline.actions(0))]
    handles = [axes.broken_barh([], (0, 0), facecolors=_COLOURS[work]) for work in drawn]
    axes.legend(handles, [labels[work] for work in drawn], loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncol=3)
    figure.savefig(options.picture, dpi=150)


def _run(options: argparse.Namespace) -> int:
    """Runs the command. Returns the exit code."""
    pipeline = Pipeline(options.schedule, options.stages, options.microbatches, options.chunks)
    pipeline.check()
    if options.csv:
        print(pipeline.csv(), end="")
    else:
        print("\n".join(report(pipeline, options)))
    if options.picture:
        draw(pipeline, options)
    return 0


def _time(text: str) -> float:
    """A type for argparse: a finite number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of 0 or more")
    return value


def add_parser(commands: Any) -> None:
    """Adds `pipeline` to the commands of `tutti`. commands: the subparsers of argparse."""
    pipeline = commands.add_parser(
        "pipeline", help="show what each rank does in a pipeline schedule, and how long it waits",
        allow_abbrev=False, description="Prints for each rank its forwards (F) and backwards (B; I of inputs, W of "
                                        "weights) as stage, work, microbatch.")
    pipeline.add_argument("schedule", help="naive, gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipe-v")
    pipeline.add_argument("--stages", type=whole(1), default=4, help="ranks of the pipeline (default: %(default)s)")
    pipeline.add_argument("--chunks", type=whole(1), help="stages of each rank (default: 1; interleaved, zb-v and "
                                                              "dualpipe-v 2)")
    pipeline.add_argument("--microbatches", type=whole(1), default=8,
                          help="microbatches of a step (default: %(default)s)")
    for name, meaning in (("forward", "time of a stage's forward"), ("backward", "time of its backward of inputs"),
                          ("weight", "time of its backward of weights")):
        pipeline.add_argument(f"--{name}", type=_time, default=1.0, metavar="TIME", help=f"{meaning} (default: 1)")
    pipeline.add_argument("--message", type=_time, default=0.0, metavar="TIME",
                          help="time of a message between ranks (default: 0)")
    pipeline.add_argument("--csv", action="store_true", help="print it as torch.distributed.pipelining reads it")
    pipeline.add_argument("--picture", type=picture, metavar="FILE", help=f"draw it ({', '.join(PICTURES)})")
    pipeline.set_defaults(run=_run)
