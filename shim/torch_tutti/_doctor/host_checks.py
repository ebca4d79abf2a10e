"""Checks between hosts: versions, clocks, connections in each direction, path MTU and speed. Each host finds what
concerns its own connections to the others."""
from __future__ import annotations

from typing import Iterator, NamedTuple

from torch_tutti._doctor import probes
from torch_tutti._doctor.findings import OK, PROBLEM, WARNING, Finding, as_json, from_json
from torch_tutti._doctor.interfaces import read_mtu, read_speed_mbit, speed_text
from torch_tutti._doctor.machine import Machine
from torch_tutti._doctor.meeting import Meeting, NoMeeting, Place
from torch_tutti._doctor.network_checks import chosen_interface
from torch_tutti._doctor.ports import parse_range
from torch_tutti._ranges import format_ranges

# At most so many ports of TUTTI_PORTS are tried, and so many others without it.
_MOST_TRIED, _ANY_PORTS = 128, 4
# A clock that differs by more seconds gives a warning.
_CLOCK_LIMIT_S = 1.0
# One connection reaches this rate on any machine, and a link that is not used otherwise this share of its speed.
_RATE_OF_CONNECTION_MBIT, _LEAST_SHARE = 10000, 0.25


class Host(NamedTuple):
    """One host as it introduces itself to the others. ports: those at which it listens for the checks. speed_mbit, mtu:
    of its interface, None if unknown."""
    name: str
    interface: str
    address: str
    ports: list[int]
    speed_mbit: int | None
    mtu: int | None
    torch: str | None
    tutti: str | None


class Path(NamedTuple):
    """The connections from this host to another, as tried. errors: by port, "" for a connection. mbit: None if
    only small packets arrive."""
    errors: dict[int, str]
    clock_s: float | None
    mtu: int | None
    mbit: float | None


# ---- findings ----
def compare_hosts(mine: Host, first: Host) -> Iterator[Finding]:
    """Compares this host with host 0."""
    for package, here, there in (("tutti", mine.tutti, first.tutti), ("torch", mine.torch, first.torch)):
        if here != there:
            yield Finding(PROBLEM, "versions", f"{package} {here} here, {there} on host 0 ({first.name})",
                          "install the same version on all hosts")
    if mine.speed_mbit and first.speed_mbit and mine.speed_mbit != first.speed_mbit:
        yield Finding(WARNING, "interface", f"{mine.interface} has {speed_text(mine.speed_mbit)}, {first.interface} of "
                      f"host 0 ({first.name}) has {speed_text(first.speed_mbit)}",
                      "if one of them is the wrong interface, set TUTTI_SOCKET_IFNAME on that host")
    if mine.mtu and first.mtu and mine.mtu != first.mtu:
        yield Finding(WARNING, "MTU", f"{mine.mtu} bytes on {mine.interface}, {first.mtu} on {first.interface} of host "
                      f"0 ({first.name})", "give all interfaces of one network the same MTU")


def judge_path(mine: Host, rank: int, other: Host, path: Path) -> Iterator[Finding]:
    """Judges the connections to one host. rank: its number."""
    check, target = f"to host {rank}", f"{other.name} ({other.address})"
    failed = [port for port, error in path.errors.items() if error]
    if not path.errors:
        yield Finding(PROBLEM, check, f"{target} listens at no port, so nothing was tried", "see its own findings")
        return
    if failed:
        reasons = ", ".join(sorted({path.errors[port] for port in failed}))
        share = "no port" if len(failed) == len(path.errors) else f"{len(failed)} of {len(path.errors)} ports"
        yield Finding(PROBLEM, check, f"{share} of {target} {'answers' if share == 'no port' else 'do not answer'} "
                      f"connections from {mine.name} ({mine.address}): {ports_text(failed)}: {reasons}",
                      f"allow them in the firewall of {other.name}, or set TUTTI_PORTS to ports that are allowed, or "
                      "TUTTI_SOCKET_IFNAME to an interface that leads there")
    if len(failed) == len(path.errors):
        return
    if path.mbit is None:
        yield Finding(PROBLEM, check, f"{target} answers, but large packets do not arrive",
                      "the MTU of a switch or tunnel between them is smaller than those of the interfaces: ip link set "
                      "mtu")
        return
    yield from _judge_speed(mine, check, target, other, path)
    if path.clock_s is not None and abs(path.clock_s) > _CLOCK_LIMIT_S:
        yield Finding(WARNING, check, f"the clock of {other.name} is {abs(path.clock_s):.1f} s "
                      f"{'ahead' if path.clock_s > 0 else 'behind'}", "run chrony or ntpd on both, to compare logs")


def _judge_speed(mine: Host, check: str, target: str, other: Host, path: Path) -> Iterator[Finding]:
    # Ranks of one host do not use the interface.
    speeds = [speed for speed in (mine.speed_mbit, other.speed_mbit) if speed and mine.address != other.address]
    text = f"{target} answers; {speed_text(path.mbit)} by one connection"
    text += f", of {speed_text(min(speeds))}" if speeds else ""
    text += f"; path MTU {path.mtu}" if path.mtu else ""
    if speeds and path.mbit < _LEAST_SHARE * min(*speeds, _RATE_OF_CONNECTION_MBIT):
        yield Finding(WARNING, check, text, "look for other traffic, errors of the interface (ip -s link), a wrong "
                      "interface (TUTTI_SOCKET_IFNAME), congestion control (docs/hosts.md)")
    else:
        yield Finding(OK, check, text)


def ports_text(ports: list[int]) -> str:
    """Returns ports as text, such as "ports 30000-30003, 30010"."""
    return f"port{'s' * (len(ports) != 1)} {format_ranges(ports)}"


# ---- the meeting ----
def check_hosts(place: Place, machine: Machine, own: list[Finding]) -> dict[int, tuple[str, list[Finding]]]:
    """Meets the other hosts and checks the connections to them. Returns the name and findings of all hosts that could
    tell them, by number. own: findings about this machine."""
    try:
        meeting = Meeting(place)
    except NoMeeting as error:
        return {place.rank: (machine.name, [*own, Finding(PROBLEM, "store", str(error), error.remedy)])}
    chosen = chosen_interface(machine)
    listener = probes.Listener(chosen.address, _wanted_ports(machine)) if chosen else None
    try:
        mine = _introduction(machine, listener.ports if listener else [])
        told = meeting.exchange("hosts", mine)
        hosts = {rank: Host(*values) for rank, values in told.items() if len(values) == len(Host._fields)}
        found = [*own, *_missing(place, hosts)]
        if hosts.get(0, mine) != mine:
            found += compare_hosts(mine, hosts[0])
        paths = _try_paths(meeting, place.rank, hosts)
        for rank, path in paths.items():
            found += judge_path(mine, rank, hosts[rank], path)
        every = meeting.exchange("findings", as_json(found), set(hosts))
        meeting.leave(set(every))
    finally:
        if listener:
            listener.close()
    return {rank: (hosts[rank].name, from_json(values)) for rank, values in sorted(every.items())}


def _missing(place: Place, hosts: dict[int, Host]) -> Iterator[Finding]:
    for rank in sorted(set(range(place.hosts)) - set(hosts)):
        yield Finding(PROBLEM, f"to host {rank}", f"host {rank} has not come to the store within {place.timeout_s:g} s",
                      "see its output: it did not start, or cannot reach the store")


def _wanted_ports(machine: Machine) -> list[int]:
    """Returns the ports to try: those of TUTTI_PORTS, evenly chosen if they are many, or any free ones."""
    try:
        ports = parse_range(machine.environment.get("TUTTI_PORTS", ""))
    except ValueError:                                  # check_ports has a finding
        ports = range(0)
    step = -(-len(ports) // _MOST_TRIED) or 1
    return list(ports[::step]) or [0] * _ANY_PORTS


def _introduction(machine: Machine, ports: list[int]) -> Host:
    chosen = chosen_interface(machine)
    name, address = (chosen.name, chosen.address) if chosen else ("", "")
    return Host(machine.name, name, address, ports, read_speed_mbit(name, machine.root),
                read_mtu(name, machine.root), machine.packages.torch, machine.packages.tutti)


def _try_paths(meeting: Meeting, rank: int, hosts: dict[int, Host]) -> dict[int, Path]:
    """Tries the connections to the other hosts. In each round a host sends to one host and receives from one."""
    ranks = sorted(hosts)
    errors = {other: probes.try_ports(_reachable(hosts[other], hosts[rank]), hosts[other].ports)
              for other in ranks if other != rank}
    paths = {}
    for distance in range(1, len(ranks)):
        meeting.exchange(f"round {distance}", None, set(hosts))
        other = ranks[(ranks.index(rank) + distance) % len(ranks)]
        address = _reachable(hosts[other], hosts[rank])
        open_ports = [port for port, error in errors[other].items() if not error]
        paths[other] = Path(errors[other], None, None, None) if not open_ports else Path(
            errors[other], probes.ask_clock_difference(address, open_ports[0]),
            probes.read_path_mtu(address, open_ports[0]), probes.measure_mbit(address, open_ports[0]))
    return paths


def _reachable(other: Host, mine: Host) -> str:
    """Returns the address of another host; a link-local one with this host's interface."""
    address, _, scope = other.address.partition("%")
    return f"{address}%{mine.interface}" if scope else address
