"""Checks of the network of one machine: the interface that tutti chooses, names, and ports."""
from __future__ import annotations

import ipaddress
from typing import Iterator

from torch_tutti._doctor.findings import OK, PROBLEM, WARNING, Finding
from torch_tutti._doctor.interfaces import Interface, choose, read_mtu, read_speed_mbit, speed_text
from torch_tutti._doctor.machine import Machine
from torch_tutti._doctor.ports import parse_range, read_ephemeral, read_listening

# Tunnels of clouds and clusters take up to a hundred bytes of Ethernet's 1500.
_LEAST_MTU = 1400                                       # bytes
# A rank listens for links, and for messages.
_PORTS_OF_RANK = 2


def chosen_interface(machine: Machine) -> Interface | None:
    """Returns the interface that tutti uses on this machine for links and messages between hosts, or None."""
    return choose(machine.interfaces, machine.environment.get("TUTTI_SOCKET_IFNAME", ""), _route_source(machine))


def _route_source(machine: Machine) -> str | None:
    return machine.route_source(machine.store_host) if machine.store_host else None


def check_interface(machine: Machine) -> Iterator[Finding]:
    """Checks the interface between hosts: its speed against those of the others, and its MTU."""
    names = machine.environment.get("TUTTI_SOCKET_IFNAME", "")
    chosen = chosen_interface(machine)
    every = ", ".join(f"{one.name} ({one.address}{'' if one.is_up else ', down'})" for one in machine.interfaces)
    if chosen is None and names:
        yield Finding(PROBLEM, "interface", f"TUTTI_SOCKET_IFNAME={names} matches none that is up", f"this host has "
                      f"{every or 'no interface'}")
    elif chosen is None:
        yield Finding(WARNING, "interface", f"no other host can be reached: this host has {every or 'no interface'}",
                      "a job on several hosts needs an interface that is up")
    else:
        yield from _check_chosen(machine, chosen)


def _check_chosen(machine: Machine, chosen: Interface) -> Iterator[Finding]:
    speed, mtu = read_speed_mbit(chosen.name, machine.root), read_mtu(chosen.name, machine.root)
    reason = "TUTTI_SOCKET_IFNAME" if machine.environment.get("TUTTI_SOCKET_IFNAME") else \
        f"the route to {machine.store_host}" if _route_source(machine) else "the first that is up"
    text = f"{chosen.name or 'unknown'} ({chosen.address}), by {reason}; "
    text += f"{speed_text(speed) if speed else 'speed unknown'}, MTU {mtu or 'unknown'}"
    others = {one.name: other_speed for one in machine.interfaces
              if one.is_up and one.name != chosen.name and (other_speed := read_speed_mbit(one.name, machine.root))}
    faster = [name for name, other_speed in others.items() if speed and other_speed > speed]
    if faster:
        yield Finding(WARNING, "interface", f"{text}; {faster[0]} has {speed_text(others[faster[0]])}",
                      f"TUTTI_SOCKET_IFNAME={faster[0]}, if it leads to the other hosts")
    else:
        yield Finding(OK, "interface", text)
    if mtu and mtu < _LEAST_MTU:
        yield Finding(WARNING, "MTU", f"{mtu} bytes on {chosen.name}: small packets cost processor time",
                      f"ip link set {chosen.name} mtu 1500, if the network carries that")


def _reason(error: OSError | UnicodeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def check_names(machine: Machine) -> Iterator[Finding]:
    """Checks that the names of this host and of the store's host have addresses."""
    try:
        addresses = machine.resolve(machine.name)
        is_local = all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses)
        note = "; use an address for --master-addr, because other hosts cannot use this name" if is_local else ""
        yield Finding(OK, "host name", f"{machine.name} is {', '.join(addresses)}{note}")
    except (OSError, UnicodeError) as error:
        yield Finding(WARNING, "host name", f"{machine.name} has no address: {_reason(error)}",
                      "add it to /etc/hosts or DNS; torchrun and gloo look it up")
    if machine.store_host:
        try:
            addresses = machine.resolve(machine.store_host)
            yield Finding(OK, "store's host", f"{machine.store_host} is {', '.join(addresses)}")
        except (OSError, UnicodeError) as error:
            yield Finding(PROBLEM, "store's host", f"{machine.store_host} has no address: {_reason(error)}",
                          "correct --master-addr (MASTER_ADDR), or add the name to /etc/hosts or DNS")


def check_ports(machine: Machine) -> Iterator[Finding]:
    """Checks TUTTI_PORTS and MASTER_PORT against the ephemeral ports and those that are taken."""
    text, ephemeral = machine.environment.get("TUTTI_PORTS", ""), read_ephemeral(machine.root)
    master = machine.number("MASTER_PORT")
    # torchrun has taken the port already if the ranks use its store.
    if master in ephemeral and machine.environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        yield Finding(WARNING, "store's port", f"MASTER_PORT={master} is an ephemeral port, which the kernel gives to "
                      "other connections", f"choose one outside of {_range_text(ephemeral)}")
    try:
        ports = parse_range(text)
    except ValueError as error:
        yield Finding(PROBLEM, "ports", str(error), "the first and the last port, as in TUTTI_PORTS=30000-30100")
        return
    if not ports:
        yield Finding(OK, "ports", "any free ones; a firewall between hosts needs TUTTI_PORTS")
        return
    free = len(ports) - len(read_listening(machine.root) & set(ports))
    needed = _PORTS_OF_RANK * (machine.number("LOCAL_WORLD_SIZE") or 1)
    if free < needed:
        yield Finding(PROBLEM, "ports", f"TUTTI_PORTS={text} has {free} free ports; {needed} are needed here",
                      "a larger range, or end the programs that listen there (ss -ltnp)")
    elif set(ports) & set(ephemeral):
        yield Finding(WARNING, "ports", f"TUTTI_PORTS={text} overlaps the ephemeral ports {_range_text(ephemeral)}, so "
                      "other connections may take them", "a range outside of them, or sysctl "
                      f"net.ipv4.ip_local_reserved_ports={text}")
    else:
        yield Finding(OK, "ports", f"TUTTI_PORTS={text}, {free} of {len(ports)} are free")


def _range_text(ports: range) -> str:
    return f"{ports.start}-{ports.stop - 1}"


CHECKS = (check_interface, check_names, check_ports)
