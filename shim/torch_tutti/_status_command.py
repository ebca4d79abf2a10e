"""`tutti status`: shows the jobs of this host while they run: where each rank is, and for which rank the others wait.
Needs no torch."""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import time
from typing import Any

from torch_tutti import _snapshots
from torch_tutti._arguments import positive_seconds
from torch_tutti._ranges import format_ranks
from torch_tutti._snapshots import Group, Job, Rank, matches

FORMAT = 1
MIB = 1 << 20
# A rank is marked if it was late in so many calls (backend/engine/lateness.h).
LATE_OFTEN = 8


# ---- as text ----
def _numbers(ranks: list[Rank]) -> str:
    return format_ranks(rank.rank for rank in ranks)


def _activity(rank: Rank) -> str:
    """Returns what a rank does, as text."""
    if rank.failure:
        return f"has failed: {rank.failure}"
    if rank.has_left:
        return "has left the group"
    last = f"call {rank.calls}: {rank.call}" if rank.calls else "no collective yet"
    if not rank.open:
        return f"last was {last}" if rank.calls else last
    since = "" if rank.open["age_s"] is None else f" for {rank.open['age_s']:.1f} s"
    kind = rank.open["kind"]
    if kind == "collective":
        return f"in {last}{since}"
    if "tag" not in rank.open:
        return f"in a {kind}{since}" if kind == "message" else f"in an operation of a window{since}"
    peer = "any rank" if rank.open["peer"] is None else f"rank {rank.open['peer']}"
    direction = "send to" if kind == "send" else "receive from"
    return f"in a {direction} {peer}{since} ({rank.open['bytes']} bytes, tag {rank.open['tag']})"


def _rank_line(rank: Rank, names_host: bool) -> str:
    place = f" on {rank.host_name}" if names_host else ""
    known = "has not answered" if rank.calls is None and not rank.has_left else _activity(rank)
    process = f", process {rank.state}" if rank.state else ""
    line = f", at {rank.place}" if rank.place and (rank.open or rank.is_late) else ""
    late = f", late in {rank.late_calls} calls for {rank.late_s:.1f} s" if rank.late_calls >= LATE_OFTEN else ""
    return f"  rank {rank.rank:<4} process {rank.pid:<8}{place} {known}{line}{process}{late}"


def find_late(group: Group) -> list[Rank]:
    """Returns the ranks for which others wait and that do not wait themselves. If all of these wait, returns them all:
    they wait for one another."""
    late = [rank for rank in group.ranks if rank.is_late]
    waiting = {rank.rank for rank in group.waits()}
    return [rank for rank in late if rank.rank not in waiting] or late


def _waits_without_other_end(group: Group) -> list[Rank]:
    """Returns the ranks that wait for a message of any rank, while no rank sends one to them."""
    return [rank for rank in group.waits() if rank.open["kind"] == "receive" and rank.open["peer"] is None
            and not any(matches(rank, peer) for peer in group.ranks)]


def _elsewhere(rank: Rank, group: Group, job: Job) -> str:
    """Returns in which other group a rank waits, as text."""
    names = [other.name for other in job.groups if other.id != group.id
             and any(waiter.process == rank.process for waiter in other.waits())]
    names += [rank.waits_in] * bool(rank.waits_in and not names)
    return f", which waits in {' and '.join(names)}" if names else ""


def _verdict(group: Group, job: Job) -> str:
    """Returns for whom the ranks of a group wait, or "" if none of them waits."""
    waiting = group.waits()
    if not waiting:
        return ""
    late = find_late(group)
    if late and all(rank in waiting for rank in late):
        what = "waits, and is awaited" if len(late) == 1 else "wait, and are awaited"
        return f"  => {_numbers(late)} {what}: do the ranks make the same calls?"
    if late:
        places = dict.fromkeys(_elsewhere(rank, group, job) for rank in late)
        return f"  => the others wait for {_numbers(late)}{''.join(places)}"
    stopped = [rank for rank in group.ranks if rank.state]
    if stopped:
        return f"  => all have made the call, and wait for {_numbers(stopped)}"
    silent = [rank for rank in group.ranks if rank.calls is None]
    if silent:
        return f"  => no rank that answers is late; {_numbers(silent)} of other hosts did not answer"
    alone = _waits_without_other_end(group)
    if alone:
        return f"  => {_numbers(alone)} {'waits' if len(alone) == 1 else 'wait'} for a message that no rank sends now"
    return "  => all have made the call, and work on it"


def _group_lines(group: Group, job: Job) -> list[str]:
    hosts = len({rank.host for rank in group.ranks})
    head = f"{group.name}: {len(group.ranks)} ranks on {hosts} host{'s' if hosts > 1 else ''}, timeout " \
           f"{group.timeout_s:g} s"
    lines = [head, *(_rank_line(rank, hosts > 1) for rank in group.ranks)]
    verdict = _verdict(group, job)
    return [*lines, verdict] if verdict else lines


def report(jobs: list[Job]) -> str:
    """Returns the jobs as text."""
    lines = []
    for number, job in enumerate(jobs):
        resident = sum(process.resident_bytes or 0 for process in job.processes)
        count = len(job.processes)
        lines += [""] * bool(number)
        lines.append(f"job of {count} process{'es' * (count != 1)} here, {resident // MIB} MiB of memory")
        for process, group in job.joining:
            lines.append(f"process {process.pid}: rank {group['rank']} of {group['ranks']} has been joining "
                         f"{group['name']} for {group['exists_s']:.1f} s")
        for group in job.groups:
            lines += _group_lines(group, job)
        silent = [process for process in job.processes if not process.snapshot]
        lines += [f"process {process.pid} does not answer{f', it is {process.state}' if process.state else ''}"
                  for process in silent]
    return "\n".join(lines) or "no process of this user on this host uses tutti"


# ---- for programs ----
def as_json(jobs: list[Job]) -> dict[str, Any]:
    """Returns the jobs as values of JSON (docs/status.md)."""
    return {"format": FORMAT, "jobs": [{
        "processes": [{"pid": process.pid, "state": process.state, "resident_bytes": process.resident_bytes,
                       "answers": process.snapshot is not None} for process in job.processes],
        "joining": [{"pid": process.pid, "group": group["name"], "rank": group["rank"], "ranks": group["ranks"],
                     "seconds": group["exists_s"]} for process, group in job.joining],
        "groups": [{"id": group.id, "name": group.name, "timeout_s": group.timeout_s,
                    "ranks": [dataclasses.asdict(rank) for rank in group.ranks]} for group in job.groups],
    } for job in jobs]}


def as_metrics(jobs: list[Job]) -> str:
    """Returns the ranks of this host in the text format of Prometheus."""
    help_of = {"calls_total": ("counter", "Collectives that the rank has called."),
               "wait_seconds": ("gauge", "How long the rank has waited in its open operation, 0 if it does not wait."),
               "late": ("gauge", "1 if other ranks wait for a call of this rank."),
               "failed": ("gauge", "1 if the group has failed on this rank.")}
    rows: dict[str, list[str]] = {name: [] for name in help_of}
    for group in (group for job in jobs for group in job.groups):
        for rank in (rank for rank in group.ranks if rank.host in group.here):
            name = group.name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            labels = f'{{group="{name}",id="{group.id}",rank="{rank.rank}",pid="{rank.pid}"}}'
            waits_s = (rank.open or {}).get("age_s") or 0
            values = (rank.calls, waits_s, int(rank.is_late), int(rank.failure is not None))
            for metric, value in zip(rows, values):
                rows[metric].append(f"tutti_{metric}{labels} {value}")
    lines = []
    for name, (kind, text) in help_of.items():
        lines += [f"# HELP tutti_{name} {text}", f"# TYPE tutti_{name} {kind}", *rows[name]]
    return "\n".join([*lines, ""])


# ---- the command ----
def stacks(jobs: list[Job]) -> str:
    """Returns the Python stacks of the processes whose ranks are late, as text."""
    late = {rank.process for job in jobs for group in job.groups for rank in find_late(group)}
    parts = []
    for process in (process for job in jobs for process in job.processes if process.id in late):
        told = process.stacks.partition("\n")[2] or "\nunknown: it is stopped, or its interpreter is locked"
        parts.append(f"\nprocess {process.pid}:{told}\n")
    return "".join(parts)


def jobs_of(pid: int | None) -> list[Job]:
    """Returns the jobs of this host, or the one of a process. Raises ValueError if that process does not use tutti."""
    jobs = _snapshots.jobs(_snapshots.read())
    if pid is None:
        return jobs
    of_process = [job for job in jobs if any(process.pid == pid for process in job.processes)]
    if not of_process:
        raise ValueError(f"status: process {pid} is no process of this user on this host that uses tutti")
    return of_process


def _run(arguments: argparse.Namespace) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        _show(arguments)
    return 0


def _show(arguments: argparse.Namespace) -> None:
    """Prints the status once, or until interrupted."""
    if arguments.serve is not None:
        from torch_tutti._status_server import serve
        serve(arguments.serve, lambda: as_metrics(jobs_of(arguments.pid)))
        return
    while True:
        jobs = jobs_of(arguments.pid)
        text = json.dumps(as_json(jobs)) if arguments.json else \
            as_metrics(jobs) if arguments.metrics else report(jobs) + (stacks(jobs) if arguments.stacks else "")
        if arguments.watch is None:
            print(text, end="" if arguments.metrics else "\n")
            return
        clear = "" if arguments.json else "\033[H\033[2J"
        print(f"{clear}{text}", flush=True)
        time.sleep(arguments.watch)


def add_parser(commands: Any) -> None:
    """Adds `status` to the commands of `tutti`. commands: the subparsers of argparse."""
    parser = commands.add_parser(
        "status", help="show where each rank of the running jobs of this host is, and who is late",
        description="Shows the jobs of this user on this host while they run, also if their ranks hang: the groups, "
                    "what each rank has called and how long it waits; => names the ranks for which others wait.")
    parser.add_argument("pid", nargs="?", type=int, help="only the job of this process")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as one JSON object")
    form.add_argument("--metrics", action="store_true", help="as text for Prometheus")
    form.add_argument("--serve", metavar="ADDRESS", help="give the metrics to Prometheus by HTTP at HOST:PORT, until "
                                                         "interrupted")
    form.add_argument("--stacks", action="store_true", help="also the Python stacks of late ranks")
    parser.add_argument("--watch", metavar="SECONDS", type=positive_seconds,
                        help="again after so many seconds, until interrupted")
    parser.set_defaults(run=_run)
