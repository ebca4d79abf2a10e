"""The tags of the blocks of options that the main thread has entered, for `tutti status`. Needs no torch."""
from __future__ import annotations

import threading

MOST_CHARACTERS = 60
# (number of the block, tag), in the order in which the blocks were entered. Only the main thread changes it.
_entered: list[tuple[int, str]] = []


def enter(block: int, tag: str) -> None:
    """Stores the tag of a block that the calling thread enters, if that is the main one."""
    if threading.current_thread() is threading.main_thread():
        _entered.append((block, tag))


def leave(block: int) -> None:
    """Forgets the last entry of a block. Has no effect on another thread than the main one."""
    if threading.current_thread() is threading.main_thread():
        for index in reversed(range(len(_entered))):
            if _entered[index][0] == block:
                del _entered[index]
                return


def innermost() -> str:
    """Returns the tag of the innermost block of the main thread that has one, or ""."""
    return _entered[-1][1] if _entered else ""
