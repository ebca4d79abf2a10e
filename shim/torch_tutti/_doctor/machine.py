"""The values that `tutti doctor` reads of a machine. Tests give other values and another root folder."""
from __future__ import annotations

import os
import resource
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from torch_tutti import _library
from torch_tutti._doctor.interfaces import Interface, find_source, list_interfaces

_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK, "fsize": resource.RLIMIT_FSIZE}


@dataclass(frozen=True)
class Packages:
    """Installed versions. built_for: minor versions of torch that have an extension."""
    torch: str | None
    tutti: str | None
    built_for: Sequence[str]


@dataclass(frozen=True)
class Machine:
    """One machine, as this process sees it. root: folder of /proc, /sys and the rest. cores: hardware threads that the
    process may use. limits: soft limits, None: unlimited. store_host: where the store is, or "". settings: the rows of
    `tutti info`. resolve: returns the addresses of a name or raises OSError. shared_memory_error: why the process gets
    no shared memory, or "" if it does."""
    environment: Mapping[str, str]
    name: str
    cores: int
    limits: Mapping[str, int | None]
    packages: Packages
    settings: Sequence[Mapping[str, Any]]
    interfaces: Sequence[Interface]
    resolve: Callable[[str], list[str]]
    route_source: Callable[[str], str | None]
    shared_memory_error: str = ""
    is_root: bool = False
    store_host: str = ""
    root: Path = field(default=Path("/"))

    def read(self, path: str) -> str | None:
        """Returns the text of a file below root without surrounding space, or None if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Returns the number in a variable of the environment, the first one of a list such as that of
        OMP_NUM_THREADS, or None if it holds none."""
        text = self.environment.get(name, "").partition(",")[0].strip()
        return int(text) if text.isdecimal() else None


def read_machine(store_host: str) -> Machine:
    """Returns the machine of this process. store_host: where the store is, or ""."""
    environment = dict(os.environ)
    # Otherwise the library would warn of settings that a finding names.
    os.environ["TUTTI_LOG"] = "error"
    info = _library.info()
    packages = Packages(info["packages"]["torch"], info["packages"]["torch-tutti"], info["packages"]["built for torch"])
    return Machine(environment, socket.gethostname(), len(os.sched_getaffinity(0)), _read_limits(), packages,
                   info["settings"], list_interfaces(), _resolve, find_source, _try_shared_memory(), os.geteuid() == 0,
                   store_host)


def _read_limits() -> dict[str, int | None]:
    soft = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in soft.items()}


def _resolve(name: str) -> list[str]:
    return list(dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(name, None)))


def _try_shared_memory() -> str:
    """Makes shared memory as the library does (memfd). Returns the error as text, or ""."""
    try:
        descriptor = os.memfd_create("tutti-doctor", os.MFD_CLOEXEC)
    except OSError as error:
        return error.strerror or str(error)
    try:
        os.truncate(descriptor, 1 << 20)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(descriptor)
    return ""
