"""Draws how a message travels over verbs: the events that test_verbs_trace has recorded on the fake provider, from top
to bottom in the order in which they happened, with a vertical line for each rank.

    python tests/verbs/picture.py docs/img/verbs.png               needs build/release (script/test release), matplotlib
"""
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRACE = [ROOT / "build/release/tests/unit_transports", "test_verbs_trace", "print"]
WRITE, READ = "#c55a11", "#2e75b6"
Event = namedtuple("Event", "message rank moment what bytes flags")


def read_trace():
    """Runs the test, and returns its events: a dict of lists by the name of the message."""
    text = subprocess.run(TRACE, capture_output=True, text=True, check=True).stdout
    panels = {}
    for line in text.splitlines():
        if line.count("\t") == 5:
            message, rank, moment, what, size, flags = line.split("\t")
            event = Event(message, int(rank.split()[1]), moment, what, int(size), flags.split())
            panels.setdefault(message, []).append(event)
    return panels


def amount(size):
    return f"{size >> 20} MiB" if size >> 20 else f"{size:,} bytes"


def event_text(event):
    if event.moment == "posted":
        flags = [flag for flag in event.flags if flag != "rings"]
        return ", ".join([f"{event.what} of {amount(event.bytes)}", *flags])
    return {"polled": "completion", "consumed": "completion of a receive"}[event.moment]


def draw(axes, events):
    """Draws the events of one message. An arrow points where bytes go: a write to the other rank, a read from it."""
    row, written = 0, {}
    for event in events:
        other, row = 1 - event.rank, row + 1
        if event.moment == "carried" and event.what == "read":
            axes.annotate("", (event.rank, row + 0.4), (other, row), arrowprops={"arrowstyle": "-|>", "color": READ})
            continue
        if event.moment == "carried":
            row -= 1
            continue
        if event.moment == "consumed":
            axes.annotate("", (event.rank, row), (other, written[other]),
                          arrowprops={"arrowstyle": "-|>", "color": WRITE})
        elif event.what == "write":
            written[event.rank] = row
        if "rings" in event.flags:
            axes.plot(event.rank, row, marker="s", markersize=7, color="black")
        elif event.moment != "posted":
            axes.plot(event.rank, row, marker="o", markersize=6, color="white", markeredgecolor="black", zorder=3)
        axes.text(event.rank + (0.06 if event.rank else -0.06), row, event_text(event), va="center", fontsize=8,
                  ha="left" if event.rank else "right")
    axes.vlines([0, 1], 0, row + 1, color="grey", linewidth=1, zorder=0)
    axes.set(xlim=(-1.5, 2.5), ylim=(row + 1.5, -1))
    for rank in (0, 1):
        axes.text(rank, -0.3, f"rank {rank}", ha="center", fontsize=9)
    axes.set_title(events[0].message, fontsize=10)
    axes.axis("off")


def main():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    panels = read_trace()
    *small, large = panels.values()
    figure = pyplot.figure(figsize=(11, 5))
    grid = figure.add_gridspec(len(small), 2)
    for place, events in enumerate(small):
        draw(figure.add_subplot(grid[place, 0]), events)
    draw(figure.add_subplot(grid[:, 1]), large)
    figure.text(0.5, 0.02, "square: a call of ibv_post_send (doorbell), with the requests below it up to the next "
                           "square;  circle: a completion is polled", ha="center", fontsize=8)
    figure.savefig(sys.argv[1], dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
