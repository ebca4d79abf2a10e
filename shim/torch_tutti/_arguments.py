"""What several subcommands read alike."""
from __future__ import annotations

import argparse
import re
from typing import Callable

PICTURES = (".png", ".svg", ".pdf")


def picture(text: str) -> str:
    if not text.lower().endswith(PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(PICTURES)}")
    return text


def whole(least: int) -> Callable[[str], int]:
    """A type for argparse: whole numbers of at least this."""
    def number(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)
    return number
