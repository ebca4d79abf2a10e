"""The command `tutti doctor`: checks this machine, and what connects it to others, before a job runs, and explains
failed jobs."""
from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from torch_tutti._arguments import positive_seconds
from torch_tutti._doctor import findings
from torch_tutti._doctor.findings import Finding
from torch_tutti._doctor.meeting import Place, find_place

# Seconds that a host waits for the others by default; they start at different times, and import torch.
_TIMEOUT_S = 30.0


# ---- checks ----
def _check(place: Place | None) -> dict[int, tuple[str, list[Finding]]]:
    """Checks this machine, and with a place the connections to other hosts. Only the first rank of torchrun on a
    machine checks the machine. Returns names and findings of hosts by number."""
    from torch_tutti._doctor import machine_checks, network_checks
    from torch_tutti._doctor.machine import read_machine
    here = read_machine(place.store_host if place else os.environ.get("MASTER_ADDR", ""))
    checks = (*machine_checks.CHECKS, *network_checks.CHECKS)
    is_first = place is None or os.environ.get("LOCAL_RANK", "0") == "0"
    found = [finding for check in checks if is_first for finding in check(here)]
    if place is None:
        return {0: (here.name, found)}
    from torch_tutti._doctor.host_checks import check_hosts
    return check_hosts(place, here, found)


def _report(hosts: dict[int, tuple[str, list[Finding]]], place: Place | None, prints_json: bool) -> int:
    """Prints the findings: on host 0 those of all hosts, on others their own. Returns the exit code of all."""
    every = [finding for _, found in hosts.values() for finding in found]
    shown = hosts if place is None or place.rank == 0 else {place.rank: hosts[place.rank]}
    if prints_json:
        print(json.dumps({"format": findings.FORMAT, "hosts": [{"name": name, "findings": findings.as_json(found)}
                                                               for name, found in shown.values()]}))
        return findings.exit_code(every)
    text = []
    for rank, (name, found) in shown.items():
        text += [f"host {rank} ({name})"] * (place is not None) + findings.lines(found)
    print("\n".join([*text, findings.summary(every) + ("" if place is None else " on all hosts")]), flush=True)
    return findings.exit_code(every)


# ---- explanations ----
def _explain_files(arguments: argparse.Namespace) -> int:
    """Explains what the files tell. Returns 1 if they tell of a failure, else 0."""
    from torch_tutti._doctor import records
    from torch_tutti._doctor.explanation import describe_traces, explain
    try:
        told = records.read(arguments.files)
    except (ValueError, OSError) as error:
        arguments.refuse(str(error))
    found = explain(told)
    if arguments.json:
        return _report({0: ("", found)}, None, True)
    traces = describe_traces(told)
    print("\n".join([*(findings.lines(found) or ["no failure was found"]), *(["", traces] if traces else [])]))
    return findings.exit_code(found)


def _run_command(arguments: argparse.Namespace) -> int:
    """Runs the command after --, and explains its failure on standard error. Returns the command's exit code."""
    from torch_tutti._doctor.explanation import explain
    from torch_tutti._doctor.program import run
    command = arguments.program[1:]
    if not command:
        arguments.refuse("there is no command after --")
    if arguments.json or any(option is not None for option in (arguments.rank, arguments.hosts, arguments.at)):
        arguments.refuse("options are for checks, and do not go with a command after --")
    try:
        code, told = run(command)
    except (ValueError, OSError) as error:
        arguments.refuse(str(error))
    found = explain(told)
    unexplained = "; no failure was found" if code == 0 else "; its output and traces do not tell why"
    text = [f"tutti doctor: the command has ended with {code}{'' if found else unexplained}"]
    print("\n".join([*text, *findings.lines(found)]), file=sys.stderr, flush=True)
    return code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.program and arguments.files:
        arguments.refuse("give files, or a command after --, not both")
    if arguments.program:
        return _run_command(arguments)
    if arguments.files:
        return _explain_files(arguments)
    try:
        place = find_place(arguments.rank, arguments.hosts, arguments.at, arguments.timeout, os.environ)
    except ValueError as error:
        arguments.refuse(str(error))
    return _report(_check(place), place, arguments.json)


def add_parser(commands: Any) -> None:
    """Adds `doctor` to the commands of `tutti`. commands: the subparsers of argparse."""
    parser = commands.add_parser(
        "doctor", usage="tutti doctor [options] [FILE ... | -- COMMAND ...]",
        help="check a machine and the network before a job runs, or explain a failed job",
        description="Checks this machine: versions, settings, limits, memory, cores, the kernel, the network. With "
                    "--rank, --hosts and --at, or in the environment of torchrun or script/hosts, the hosts meet and "
                    "also check the connections between them. With files it checks nothing, but explains what happened "
                    "to the job that wrote them; with a command after -- it runs the command, explains its failure, "
                    "and returns its exit code. Exit code: 0 if there is no problem (warnings are none), 1 if there is "
                    "one, 2 for wrong usage.")
    parser.add_argument("files", nargs="*", metavar="FILE", help="traces of the flight recorder and logs of a job "
                                                                 "that failed, or folders of them")
    parser.add_argument("--rank", type=int, metavar="R", help="number of this host, from 0 (default: RANK, NODE_RANK)")
    parser.add_argument("--hosts", type=int, metavar="N", help="number of hosts (default: WORLD_SIZE, NNODES)")
    parser.add_argument("--at", metavar="HOST:PORT", help="where they meet: an address of host 0 and a free port there "
                                                          "(default: MASTER_ADDR:MASTER_PORT)")
    parser.add_argument("--timeout", type=positive_seconds, metavar="SECONDS", default=_TIMEOUT_S,
                        help="limit of each wait for other hosts (default: %(default)g)")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=_run, refuse=parser.error)
