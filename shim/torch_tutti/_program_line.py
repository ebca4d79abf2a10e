"""Finds the line of the program in a stack, above the frames of torch, tutti and installed packages."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterable, NamedTuple

# The characters of a path and of a function's name in a description.
MOST_PATH, MOST_NAME = 60, 40
_PACKAGES = {"site-packages", "dist-packages"}


class Frame(NamedTuple):
    """A frame of a stack: its function, file and line."""
    name: str
    filename: str
    line: int


def find(frames: Iterable[Frame]) -> Frame | None:
    """Returns the innermost frame outside of installed packages, else the innermost one outside of torch and tutti, or
    None. frames: innermost first."""
    own = [frame for frame in frames if not _is_library(Path(frame.filename))]
    outside = [frame for frame in own if not _PACKAGES & set(Path(frame.filename).parts)]
    return (outside or own or [None])[0]


def describe(frames: Iterable[dict[str, Any]]) -> str:
    """Returns the line of the program in a stack, as "code/train.py:19 (step)", or "" if there is none. It has room for
    the end of a path only. frames: innermost first, with the keys of Frame."""
    line = find(Frame(frame["name"], frame["filename"], frame["line"]) for frame in frames)
    if not line:
        return ""
    file = "/".join(Path(line.filename).parts[-2:])
    return f"{file[-MOST_PATH:]}:{line.line} ({line.name[:MOST_NAME]})"


def _is_library(path: Path) -> bool:
    """Returns whether a file belongs to torch, tutti, typing_extensions or Python's library."""
    in_python_library = re.search(r"/python3\.\d+/(?!(?:site|dist)-packages/)", str(path))
    return bool(in_python_library or {"torch", "torch_tutti", "typing_extensions.py"} & set(path.parts)
                or str(path).startswith("<"))
