"""TUTTI_DEBUG: one word that switches on what helps to find a fault: the flight recorder, the log at level info, a
short timeout, and checks of the results (shim/checks.hpp). Values that are given for any of these take precedence."""
from __future__ import annotations

import os
from datetime import timedelta
from types import ModuleType

# The operations that the flight recorder keeps, and the timeout of groups for which the program gives none.
OPERATIONS, TIMEOUT = 2000, timedelta(seconds=60)
_VALUES = ("", "0", "1", "warn")


def is_on() -> bool:
    """Returns whether TUTTI_DEBUG is set. Raises ValueError for a value that is not allowed."""
    value = os.environ.get("TUTTI_DEBUG", "")
    if value not in _VALUES:
        raise ValueError(f"TUTTI_DEBUG={value} is not allowed: use 1, or warn, with which the checks only warn, or 0")
    return value not in ("", "0")


def start(extension: ModuleType) -> None:
    """Switches the checks on, if TUTTI_DEBUG is set. Every group that is made later has them."""
    if is_on():
        extension._check_results(os.environ["TUTTI_DEBUG"] == "warn")


def timeout(given: timedelta) -> timedelta:
    """Returns the timeout of a group. given: by the program, or torch's default, which does not count as given."""
    from torch.distributed.constants import default_pg_timeout
    return TIMEOUT if is_on() and given == default_pg_timeout else given
