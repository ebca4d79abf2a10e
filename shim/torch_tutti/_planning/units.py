"""Converts texts with units (350M, 80GB, 400gbit,15us) to numbers, as argparse types, and numbers to texts."""
from __future__ import annotations

import argparse
import re
from typing import NamedTuple

NUMBER = r"(\d+(?:\.\d+)?)"
DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class Link(NamedTuple):
    """A link. speed: bytes per second in each direction. latency: seconds of a message, the α of T = α + nβ."""
    speed: float
    latency: float


def count(text: str) -> int:
    """Returns a number of parameters; k, M and B are powers of 1000."""
    found = re.fullmatch(NUMBER + r"([kKmMbB]?)", text)
    amount = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[found[2].lower()] if found else 0.0
    number = int(amount) if amount < float("inf") else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters, such as 350M or 1.3B")
    return number


def share(text: str) -> float:
    """Returns a number in (0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share in (0, 1]")
    return value


def tokens(text: str) -> int:
    """Returns a number of tokens; k and M are powers of 1024."""
    found = re.fullmatch(r"(\d+)([kKmM]?)", text)
    number = int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2].lower()] if found else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, such as 3145728 or 4M, which is 4 x "
                                         "1024 x 1024")
    return number


def memory(text: str) -> float:
    """Returns bytes; GB is a power of 1000, GiB of 1024."""
    found = re.fullmatch(NUMBER + r" ?([kMGT])(i?)B", text)
    unit = (1024.0 ** ("kMGT".index(found[2]) + 1) if found[3] else DECIMAL[found[2]]) if found else 0.0
    amount = float(found[1]) * unit if found else 0.0
    if not 0 < amount < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory, such as 80GB or 80GiB")
    return amount


def flops(text: str) -> float:
    """Returns operations per second of a device."""
    found = re.fullmatch(NUMBER + r" ?([MGTP])(?:FLOPS|FLOP/s|flops)?", text)
    speed = float(found[1]) * DECIMAL[found[2]] if found else 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed of a device in operations per second, such as "
                                         "989T or 160G")
    return speed


def speed(text: str) -> float:
    """Returns bytes per second, from bits or bytes per second."""
    found = re.fullmatch(NUMBER + r" ?([kMGT]?)(?:(bit)(?:/s)?|(B)/s)", text, re.IGNORECASE)
    units = {name.lower(): value for name, value in DECIMAL.items()}
    value = float(found[1]) * units[found[2].lower()] / (8 if found[3] else 1) if found else 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed of a link, such as 400gbit or 50GB/s; the latency "
                                         "of a message may follow: 400gbit,15us")
    return value


def link(text: str) -> tuple[float, float | None]:
    """Returns (bytes per second, seconds of latency or None if the text has none)."""
    speed_text, comma, latency_text = text.partition(",")
    found = re.fullmatch(NUMBER + r" ?(ns|us|ms|s)", latency_text.strip()) if comma else None
    if comma and not found:
        raise argparse.ArgumentTypeError(f"{latency_text.strip()!r} is not a latency, such as 15us")
    return speed(speed_text.strip()), float(found[1]) * SECONDS[found[2]] if found else None


# ---- from numbers to texts ----
def bytes_shown(amount: float) -> str:
    """Returns an amount of bytes as text, with a power of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            return f"{amount:.{0 if unit == 'B' or amount >= 99.95 else 1}f} {unit}"
        amount /= 1000
    raise AssertionError


def seconds_shown(seconds: float) -> str:
    """Returns a time as text, in s, ms, us or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def scaled(value: float) -> str:
    """Returns a number with three digits and the letter of a power of 1000."""
    for letter, size in reversed(DECIMAL.items()):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {letter}" if value < 999.5 * size else f"{value / size:.0f} {letter}"
    return f"{value:.3g} "
