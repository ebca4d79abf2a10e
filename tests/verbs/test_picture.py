"""Tests of picture.py without matplotlib: it draws every kind of event that test_verbs_trace prints."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/verbs"))
import picture  # noqa: E402


class Recorder:
    """Stands for the axes of matplotlib, and records the names and arguments of all calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, arguments))


def printed_moments():
    source = (ROOT / "tests/unit/transports/test_verbs_trace.c").read_text()
    return re.findall(r'"(\w+)"', re.search(r"moments\[\] = \{(.*?)\}", source).group(1))


def test_events_of_every_moment_are_drawn():
    posted, carried, polled, consumed = printed_moments()
    axes = Recorder()
    picture.draw(axes, [picture.Event("8 bytes", 0, posted, "write", 128, ["rings", "inline"]),
                        picture.Event("8 bytes", 0, carried, "write", 128, []),
                        picture.Event("8 bytes", 1, consumed, "", 0, []),
                        picture.Event("8 bytes", 0, polled, "", 0, [])])
    texts = [arguments[2] for name, arguments in axes.calls if name == "text"]
    assert texts[:3] == ["write of 128 bytes, inline", "completion of a receive", "completion"]
    arrows = [arguments for name, arguments in axes.calls if name == "annotate"]
    assert arrows == [("", (1, 2), (0, 1))], "one arrow, from the row of the write to that of the receive's completion"
