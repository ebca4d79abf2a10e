"""Types of command line arguments that several subcommands share."""
from __future__ import annotations

import argparse
import math
import re
from typing import Callable

PICTURES = (".png", ".svg", ".pdf")
MOST_PORT = 65535


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


def positive_seconds(text: str) -> float:
    """A type for argparse: a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return seconds


def split_address(text: str) -> tuple[str, int] | None:
    """Returns the host and the port of HOST:PORT, or None for another text. The port may be 0."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and int(port) <= MOST_PORT else None
