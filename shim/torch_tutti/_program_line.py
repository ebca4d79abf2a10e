"""Finds the line of the program in a stack, above the frames of torch, tutti and installed packages."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Iterable, NamedTuple

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


def _is_library(path: Path) -> bool:
    """Returns whether a file belongs to torch, tutti, typing_extensions or Python's library."""
    in_python_library = re.search(r"/python3\.\d+/(?!(?:site|dist)-packages/)", str(path))
    return bool(in_python_library or {"torch", "torch_tutti", "typing_extensions.py"} & set(path.parts)
                or str(path).startswith("<"))
