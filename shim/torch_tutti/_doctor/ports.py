"""The ports at which tutti listens for other hosts: TUTTI_PORTS, and what else uses them."""
from __future__ import annotations

import contextlib
import re
from pathlib import Path

from torch_tutti._arguments import MOST_PORT

_LISTENS = "0A"


def parse_range(text: str) -> range:
    """Returns the ports of TUTTI_PORTS, empty if it is empty. Raises ValueError for a text that is no range."""
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= MOST_PORT:
        raise ValueError(f"TUTTI_PORTS={text} is not a range of ports, such as 30000-30100")
    return range(int(match[1]), int(match[2]) + 1)


def read_ephemeral(root: Path = Path("/")) -> range:
    """Returns the ports that the kernel gives to outgoing connections, empty if they are unknown."""
    try:
        first, last = map(int, (root / "proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return range(0)
    return range(first, last + 1)


def read_listening(root: Path = Path("/")) -> set[int]:
    """Returns the TCP ports at which a process of this host listens."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (root / "proc/net" / table).read_text().splitlines()[1:]:
                local, _, state = line.split()[1:4]
                if state == _LISTENS:
                    found.add(int(local.rpartition(":")[2], 16))
    return found
