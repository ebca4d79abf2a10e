"""The network interfaces of this host, and the one that tutti chooses (as backend/join/interface.c does)."""
from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import NamedTuple, Sequence

# Requests of ioctl and flags of interfaces (linux/sockios.h, linux/if.h).
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
# The length of a name in struct ifreq, and the place of an IPv4 address in it.
_NAME_BYTES, _ADDRESS = 16, slice(20, 24)


class Interface(NamedTuple):
    """An address of a network interface. An interface with several addresses is there several times."""
    name: str
    address: str
    is_up: bool


def list_interfaces(root: Path = Path("/")) -> list[Interface]:
    """Returns the interfaces of this host, those with IPv4 addresses first."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        names = [name for _, name in socket.if_nameindex()]
        for name in names:
            with contextlib.suppress(OSError):          # it has no IPv4 address
                address = socket.inet_ntoa(_ask(probe, _SIOCGIFADDR, name)[_ADDRESS])
                found.append(Interface(name, address, _is_up(probe, name)))
        with contextlib.suppress(OSError):              # a kernel without IPv6
            for line in (root / "proc/net/if_inet6").read_text().splitlines():
                digits, *_, name = line.split()
                address = str(ipaddress.IPv6Address(int(digits, 16)))
                scope = f"%{name}" if ipaddress.ip_address(address).is_link_local else ""
                found.append(Interface(name, address + scope, _is_up(probe, name)))
    return found


def _ask(probe: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(probe, request, struct.pack("256s", name.encode()[:_NAME_BYTES - 1]))


def _is_up(probe: socket.socket, name: str) -> bool:
    wanted = _IFF_UP | _IFF_RUNNING
    try:
        return struct.unpack_from("H", _ask(probe, _SIOCGIFFLAGS, name), _NAME_BYTES)[0] & wanted == wanted
    except OSError:
        return False


def find_source(host: str) -> str | None:
    """Returns the local address of the route to a host; None without a route, or if it is a loopback address. Sends no
    packet."""
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                source = probe.getsockname()[0]
                if not _address_of(source).is_loopback:
                    return source
    return None


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.partition("%")[0])


def choose(interfaces: Sequence[Interface], names: str, source: str | None) -> Interface | None:
    """Returns the interface that tutti uses between hosts, or None. names: TUTTI_SOCKET_IFNAME. source: the local
    address of the route to the store, which decides if `names` is empty."""
    if not names and source:
        of_source = [one for one in interfaces if one.address.partition("%")[0] == source.partition("%")[0]]
        return of_source[0] if of_source else Interface("", source, True)
    usable = [one for one in interfaces if one.is_up]
    if not names or names.startswith("^"):
        usable = [one for one in usable if not _address_of(one.address).is_loopback
                  and not (names and any(_matches(one.name, part) for part in _parts(names[1:])))]
        return _prefer_global(usable)
    for part in _parts(names):
        if found := _prefer_global([one for one in usable if _matches(one.name, part)]):
            return found
    return None


def _parts(names: str) -> list[str]:
    """Returns the names of a list; a leading = is valid for all of them."""
    parts = [part.removeprefix("=") for part in names.removeprefix("=").split(",")]
    if names.startswith("="):
        return [f"={part}" for part in parts if part]
    return [part for part in names.split(",") if part.removeprefix("=")]


def _matches(name: str, part: str) -> bool:
    return name == part[1:] if part.startswith("=") else name.startswith(part)


def _prefer_global(interfaces: Sequence[Interface]) -> Interface | None:
    """Returns the first interface whose address is not link-local, else the first one, or None."""
    lasting = [one for one in interfaces if not _address_of(one.address).is_link_local]
    return next(iter([*lasting, *interfaces]), None)


# ---- its description ----
def read_speed_mbit(name: str, root: Path = Path("/")) -> int | None:
    """Returns the nominal speed of an interface in Mbit/s, or None if it is unknown."""
    speed = _read_number(root / f"sys/class/net/{name}/speed")
    return speed if speed and speed > 0 else None


def read_mtu(name: str, root: Path = Path("/")) -> int | None:
    """Returns the MTU of an interface in bytes, or None if it is unknown."""
    return _read_number(root / f"sys/class/net/{name}/mtu")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def speed_text(mbit: float) -> str:
    """Returns a speed as text, such as "25 Gbit/s"."""
    return f"{mbit / 1000:.3g} Gbit/s" if mbit >= 1000 else f"{mbit:.3g} Mbit/s"
