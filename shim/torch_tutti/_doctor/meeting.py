"""The meeting of the hosts of `tutti doctor` at a store of torch, where they exchange values."""
from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from datetime import timedelta
from typing import Any, Mapping, NamedTuple

from torch_tutti._arguments import split_address

# Pairs of variables with the number of this host and the number of hosts, as launchers and script/hosts set them.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("NODE_RANK", "NNODES"), ("SLURM_PROCID", "SLURM_NTASKS"))
# Seconds between two attempts to reach the store, and of the longest one.
_PAUSE_S, _ATTEMPT_S = 0.2, 5.0
# The owner of the store keeps it for so long for hosts that still read.
_LAST_READS_S = 5.0


class Place(NamedTuple):
    """The number of this host among all, and where they meet. owns_store: this host makes the store. timeout_s: limit
    of each wait for the others."""
    rank: int
    hosts: int
    store_host: str
    store_port: int
    owns_store: bool
    timeout_s: float


class NoMeeting(Exception):
    """The store cannot be reached or made. remedy: what to do."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


def find_place(rank: int | None, hosts: int | None, address: str | None, timeout_s: float,
               environment: Mapping[str, str]) -> Place | None:
    """Returns the place by the options of the command and the environment of a launcher; None if neither names several
    hosts. Raises ValueError for options that are not enough, or contradict each other."""
    is_asked = any(option is not None for option in (rank, hosts, address))
    if address is None and environment.get("MASTER_ADDR"):
        address = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '29500')}"
    # Tasks of Slurm may be ranks, and a script of Slurm runs on one host only.
    variables = _VARIABLES if is_asked else _VARIABLES[:2]
    found = [(environment[own], environment[all_]) for own, all_ in variables
             if environment.get(own, "").isdecimal() and environment.get(all_, "").isdecimal()]
    if found:
        rank = int(found[0][0]) if rank is None else rank
        hosts = int(found[0][1]) if hosts is None else hosts
    if not is_asked and (not found or hosts == 1 or address is None):
        return None
    if rank is None or hosts is None or address is None:
        raise ValueError("several hosts need --rank R, --hosts N and --at HOST:PORT, or RANK, WORLD_SIZE, MASTER_ADDR "
                         "and MASTER_PORT in the environment")
    if not 0 <= rank < hosts or hosts < 2:
        raise ValueError(f"--rank {rank} and --hosts {hosts}: the hosts are numbered from 0, and there are 2 or more")
    has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Place(rank, hosts, *_split(address), rank == 0 and not has_store, timeout_s)


def _split(address: str) -> tuple[str, int]:
    host, port = split_address(address) or ("", 0)
    host = re.sub(r"^\[(.*)\]$", r"\1", host)
    if not host or not port:
        raise ValueError(f"--at {address} is not HOST:PORT, such as node0:29500")
    return host, port


def await_store(place: Place) -> None:
    """Waits until something listens at the store's address. Raises NoMeeting with the reason if nothing does."""
    until = time.monotonic() + place.timeout_s
    where = f"the store at {place.store_host}:{place.store_port}"
    while True:
        try:
            left_s = max(_PAUSE_S, until - time.monotonic())
            socket.create_connection((place.store_host, place.store_port), min(_ATTEMPT_S, left_s)).close()
            return
        except (socket.gaierror, UnicodeError) as error:
            raise NoMeeting(f"{where}: the name has no address ({error})",
                            "correct the name, or add it to /etc/hosts or DNS") from None
        except OSError as error:
            reason = error
        if time.monotonic() >= until:
            break
        time.sleep(_PAUSE_S)
    if isinstance(reason, ConnectionRefusedError):
        raise NoMeeting(f"{where}: its host answers, but nobody listens there after {place.timeout_s:g} s",
                        "start tutti doctor on host 0 with the same address, or raise --timeout")
    raise NoMeeting(f"{where} does not answer within {place.timeout_s:g} s ({reason})",
                    "a firewall drops the packets, or no route leads there: allow this port on host 0")


class Meeting:
    """The hosts that have met. Each exchange has a name."""

    def __init__(self, place: Place) -> None:
        """Makes the store, or connects to it. Raises NoMeeting if that fails."""
        if not place.owns_store:
            await_store(place)
        from torch.distributed import PrefixStore, TCPStore
        try:
            store = TCPStore(place.store_host, place.store_port, is_master=place.owns_store, wait_for_workers=False,
                             timeout=timedelta(seconds=place.timeout_s))
        except RuntimeError as error:
            text = str(error).splitlines()[0]
            raise NoMeeting(f"no store at {place.store_host}:{place.store_port}: {text}",
                            "host 0 must be the host of that address, and the port must be free") from None
        self._place, self._store = place, PrefixStore("tutti doctor", store)

    def exchange(self, name: str, value: Any, ranks: set[int] | None = None) -> dict[int, Any]:
        """Gives a value to all hosts, and returns those of all that have given theirs in time. ranks: the hosts to wait
        for; None: all."""
        until = time.monotonic() + self._place.timeout_s
        found = {self._place.rank: value}
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{name}/{self._place.rank}", json.dumps(value))
        for rank in sorted((set(range(self._place.hosts)) if ranks is None else ranks) - {self._place.rank}):
            left_s = max(0.01, until - time.monotonic())
            with contextlib.suppress(RuntimeError):     # torch's errors of a store: too late, or its host is gone
                self._store.wait([f"{name}/{rank}"], timedelta(seconds=left_s))
                found[rank] = json.loads(self._store.get(f"{name}/{rank}"))
        return found

    def leave(self, ranks: set[int]) -> None:
        """Ends the meeting; the owner of the store waits a moment until the others have left."""
        if self._place.owns_store:
            self._place = self._place._replace(timeout_s=_LAST_READS_S)
            self.exchange("left", None, ranks)
        else:
            with contextlib.suppress(RuntimeError):
                self._store.set(f"left/{self._place.rank}", "null")
