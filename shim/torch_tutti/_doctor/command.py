"""The command `tutti doctor`: checks this machine, and what connects it to others, before a job runs, and explains
failed jobs."""
from __future__ import annotations

import argparse
import json
from typing import Any

from torch_tutti._doctor import findings
from torch_tutti._doctor.findings import Finding


def _check_machine(arguments: argparse.Namespace) -> int:
    from torch_tutti._doctor import machine, machine_checks, network_checks
    here = machine.read_machine(machine.environment_store_host())
    found = [finding for check in (*machine_checks.CHECKS, *network_checks.CHECKS) for finding in check(here)]
    return _report(here.name, found, arguments.json)


def _report(host: str, found: list[Finding], prints_json: bool) -> int:
    """Prints what was found on a host, and returns the exit code."""
    if prints_json:
        print(json.dumps({"format": findings.FORMAT, "hosts": [{"name": host,
                                                                "findings": findings.as_json(found)}]}))
    else:
        print("\n".join([*findings.lines(found), findings.summary(found)]))
    return findings.exit_code(found)


def _run(arguments: argparse.Namespace) -> int:
    return _check_machine(arguments)


def add_parser(commands: Any) -> None:
    """Adds `doctor` to the commands of `tutti`. commands: the subparsers of argparse."""
    parser = commands.add_parser(
        "doctor", help="check this machine before a job runs",
        description="Checks this machine: versions, settings, limits, memory, cores, the kernel, the network. Exit "
                    "code: 0 if there is no problem (warnings are none), 1 if there is one, 2 for wrong usage.")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=_run)
