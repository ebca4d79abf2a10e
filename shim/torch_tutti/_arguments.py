"""Types of command line arguments that several subcommands share."""
from __future__ import annotations

import argparse
import re
from typing import Callable

PICTURES = (".png", ".svg", ".pdf")


def picture(text: str) -> str:
    """A type for argparse: the name of a file whose ending is one of PICTURES."""
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(PICTURES)}")
    return text


def whole(least: int) -> Callable[[str], int]:
    """Returns a type for argparse: whole numbers of at least `least`."""
    def number(text: str) -> int:
        """Returns the number, or raises ArgumentTypeError."""
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)
    return number
