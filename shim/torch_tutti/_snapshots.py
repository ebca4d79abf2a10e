"""Snapshots of the processes of this host that use tutti: how to find them, and what they say together.

Each process has a Unix socket in the abstract namespace, from which a caller of the same user gets JSON
(backend/engine/snapshot.h). The watch thread of the process answers, also while its ranks hang. Needs no torch."""
from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

FORMAT = 2
# Answers of ranks of other hosts that are older count as none. The questions are repeated after REPEAT_S.
RECENT_S, REPEAT_S = 2.0, 0.05
MOST_STACK_BYTES = 1 << 16
PREFIX = "@tutti-snapshot-"
# The letters of /proc/PID/stat for which a process does not run by itself.
STATES = {"T": "stopped", "t": "stopped by a debugger", "Z": "ended", "X": "ended", "D": "waits for a device"}


@dataclass
class Process:
    """A process of this host. id: its nonce, by which the others of its groups know it. pid: its number here, which
    differs from its own in a container; 0 if it is invisible here. snapshot: its JSON, or None. stacks: the stacks
    of its threads; the first line is the place of the main thread, and all are "" if it has not told them. state: a
    value of STATES, or "" if it runs. resident_bytes: the memory that it occupies, or None if that is unknown."""
    id: str
    pid: int
    snapshot: dict[str, Any] | None
    stacks: str
    state: str
    resident_bytes: int | None


@dataclass
class Rank:
    """A rank of a group. calls and open are None for a rank of another host that has not answered.

    process: the id of its process. pid: its number here, or as it knows itself if it has ended or is elsewhere.
    calls: number of the last collective that it called. call: the description of that. open: the operation that is
    open, with "kind" and "age_s". is_late: ranks wait for this one. state: that of its process. place: the line
    that the main thread of its process runs, or "". waits_in: another group in which its process waits, or ""; only of
    ranks of other hosts. late_calls, late_s: how many calls other ranks of its host have waited for it, and how long
    the one that has waited most."""
    rank: int
    process: str
    pid: int
    host: int
    host_name: str
    calls: int | None = None
    call: str = ""
    open: dict[str, Any] | None = None
    has_left: bool = False
    failure: str | None = None
    state: str = ""
    place: str = ""
    waits_in: str = ""
    is_late: bool = False
    late_calls: int = 0
    late_s: float = 0.0


@dataclass
class Group:
    """A group, as the processes of this host describe it. here: numbers of the hosts in the group that are this
    host, whose processes answer on sockets."""
    id: str
    name: str
    timeout_s: float
    ranks: list[Rank]
    here: set[int] = field(default_factory=set)

    def waits(self) -> list[Rank]:
        """Returns the ranks whose operation has been open for long enough that a thread waits for it."""
        return [rank for rank in self.ranks if rank.open and rank.open["age_s"] is not None]


@dataclass
class Job:
    """Processes that share groups. joining: (process, group) for each rank that has not joined yet, where the group is
    that part of the snapshot."""
    processes: list[Process]
    groups: list[Group]
    joining: list[tuple[Process, dict[str, Any]]]


# ---- reading ----
def socket_names() -> list[str]:
    """Returns the names of the sockets of all processes, of any user."""
    # A name may have any bytes.
    with open("/proc/net/unix", errors="replace") as table:
        found = (re.search(f"{PREFIX}[0-9a-f]{{32}}$", line) for line in table)
        return sorted({match[0] for match in found if match})


def _proc_stat(pid: int) -> tuple[str, int | None]:
    """Returns the state of a process, as in STATES, and its resident bytes. "ended" if there is no such process."""
    if pid == 0:
        return "", None
    try:
        with open(f"/proc/{pid}/stat") as stat:
            words = stat.read().rpartition(")")[2].split()
    except OSError:
        return "ended", None
    return STATES.get(words[0], ""), int(words[21]) * os.sysconf("SC_PAGE_SIZE")


def _read_snapshot(descriptor: int) -> dict[str, Any] | None:
    """Returns the snapshot in a file, and closes that; None if it has none of this format."""
    with open(descriptor, "rb") as text, contextlib.suppress(OSError, ValueError):
        text.seek(0)
        snapshot = json.load(text)
        return snapshot if isinstance(snapshot, dict) and snapshot.get("format") == FORMAT else None
    return None


def _ask(name: str, timeout_s: float) -> tuple[int, dict[str, Any] | None, str] | None:
    """Returns the process that listens on that socket, its snapshot, or None for that if it does not answer in time,
    and its stacks. Returns None for a process that has ended or belongs to another user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        # The queue of another user's socket may be full.
        caller.setblocking(False)
        try:
            caller.connect("\0" + name[1:])
        except OSError:
            return None
        caller.settimeout(timeout_s)
        pid, user, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            return None
        snapshot, stacks = None, ""
        with contextlib.suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(caller, 8, 1)
            snapshot = _read_snapshot(descriptors[0]) if descriptors else None
            stacks = caller.recv(MOST_STACK_BYTES).decode(errors="replace")
    return pid, snapshot, stacks


def processes(timeout_s: float = 1.0) -> list[Process]:
    """Returns the processes of this host and this user that use tutti.

    timeout_s: how long each may take to answer, in seconds. A stopped process does not answer, and one whose
    interpreter is locked does not tell its stacks."""
    found = []
    for name in socket_names():
        answer = _ask(name, timeout_s)
        if answer:
            found.append(Process(name.removeprefix(PREFIX), *answer, *_proc_stat(answer[0])))
    return sorted(found, key=lambda process: process.pid)


def _is_recent(seen: dict[str, Any]) -> bool:
    return seen["told_s"] is not None and seen["told_s"] <= RECENT_S


def _silent_elsewhere(found: list[Process]) -> set[tuple[str, int]]:
    """Returns (group, rank) of the ranks of other hosts whose state or line no process here knows yet."""
    silent, known = set(), set()
    here = {process.id for process in found}
    for own in (own for process in found for own in _joined(process)):
        for seen in own["elsewhere"]:
            if own["members"][seen["rank"]]["process"] not in here and not seen["has_left"]:
                is_known = _is_recent(seen) and seen["place"] is not None
                (known if is_known else silent).add((own["id"], seen["rank"]))
    return silent - known


def read(timeout_s: float = 1.0) -> list[Process]:
    """Returns the processes of this host and this user, with the states of the ranks of other hosts in their groups.

    timeout_s: how long a process, and all other hosts together, may take to answer, in seconds. Each reading makes the
    processes ask the other hosts for the next one."""
    until = time.monotonic() + timeout_s
    found = processes(timeout_s)
    while _silent_elsewhere(found) and time.monotonic() < until:
        time.sleep(REPEAT_S)
        found = processes(timeout_s)
    return found


# ---- merging ----
def _joined(process: Process) -> list[dict[str, Any]]:
    """Returns the groups of a process that have formed."""
    return [group for group in (process.snapshot or {"groups": []})["groups"] if group["state"] != "joining"]


def _add_knowledge(group: Group, own: dict[str, Any]) -> None:
    """Adds to a group what the snapshot of one of its ranks knows."""
    group.here.add(own["host"])
    for seen in own["here"]:
        rank = group.ranks[seen["rank"]]
        if rank.calls is None or seen["calls"] > rank.calls:
            rank.calls, rank.call = seen["calls"], seen["call"]
        rank.has_left |= seen["has_left"]
        rank.late_calls = max(rank.late_calls, seen["late_calls"])
        rank.late_s = max(rank.late_s, seen["late_s"])
    for seen in own["elsewhere"]:
        rank = group.ranks[seen["rank"]]
        rank.has_left |= seen["has_left"]
        if _is_recent(seen):
            rank.calls, rank.call, rank.place = seen["calls"], seen["call"], seen["place"] or ""
            rank.open, rank.failure, rank.waits_in = seen["open"], seen["failure"], seen["waits_in"]
    mine = group.ranks[own["rank"]]
    mine.open, mine.failure = own["open"], own["failure"]


def matches(rank: Rank, peer: Rank) -> bool:
    """Returns whether the open operation of `peer` is the other end of the message for which `rank` waits."""
    mine, other = rank.open or {}, peer.open or {}
    ends = {"send": "receive", "receive": "send"}
    return mine.get("kind") in ends and other.get("kind") == ends[mine["kind"]] and mine["tag"] == other["tag"] \
        and mine["peer"] in (peer.rank, None) and other["peer"] in (rank.rank, None)


def _mark_late(group: Group) -> None:
    """Marks the ranks for which others wait: those that have not called the newest collective that is open, and the
    peers of open messages that have not called the other end. Ranks that have not answered are not marked."""
    waiting = group.waits()
    newest = max((rank.calls or 0 for rank in waiting if rank.open["kind"] == "collective"), default=0)
    for rank in group.ranks:
        rank.is_late = rank.calls is not None and rank.calls < newest
    for rank in waiting:
        number = rank.open.get("peer")
        peer = None if number is None else group.ranks[number]
        if peer and peer.calls is not None and not matches(rank, peer):
            peer.is_late = True


def _groups(members: list[Process]) -> list[Group]:
    """Returns the groups of these processes, in the order in which they were made."""
    groups: dict[str, Group] = {}
    of_id = {process.id: process for process in members}
    for process in members:
        for own in _joined(process):
            ranks = [Rank(m["rank"], m["process"], m["pid"], m["host"], m["host_name"]) for m in own["members"]]
            group = groups.setdefault(own["id"], Group(own["id"], own["name"], own["timeout_s"], ranks))
            _add_knowledge(group, own)
    for group in groups.values():
        for rank in (rank for rank in group.ranks if rank.host in group.here):
            process = of_id.get(rank.process)
            rank.state = "ended" if not process else process.state or ("" if process.snapshot else "does not answer")
            rank.place = process.stacks.partition("\n")[0] if process else ""
            rank.pid = process.pid or rank.pid if process else rank.pid
        _mark_late(group)
    return list(groups.values())


def _parts(found: list[Process]) -> list[set[str]]:
    """Returns the ids of the processes of each job."""
    parts: list[set[str]] = []
    for process in found:
        ids = {process.id}
        for group in _joined(process):
            ids |= {member["process"] for member in group["members"]}
        apart = [part for part in parts if not part & ids]
        parts = [*apart, ids.union(*(part for part in parts if part & ids))]
    return parts


def jobs(found: list[Process]) -> list[Job]:
    """Returns the jobs of these processes. Processes belong to one job if they share a group."""
    made = []
    for part in _parts(found):
        together = [process for process in found if process.id in part]
        joining = [(process, group) for process in together if process.snapshot
                   for group in process.snapshot["groups"] if group["state"] == "joining"]
        made.append(Job(together, _groups(together), joining))
    return made
