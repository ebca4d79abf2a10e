"""Checks of one machine without its network: versions, settings, limits, memory, cores, the kernel."""
from __future__ import annotations

import difflib
import re
import time
from pathlib import PurePosixPath
from typing import Iterator

from torch_tutti._doctor.findings import OK, PROBLEM, WARNING, Finding
from torch_tutti._doctor.machine import Machine

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# A process needs descriptors for its own files, and some for each other process.
_OWN_FILES, _FILES_OF_PEER = 100, 4
# Less free memory, and less in /dev/shm, gives a warning. Docker gives /dev/shm 64 MiB by default.
_LITTLE_MEMORY, _LITTLE_SHM_KIB = GIB, 64 * KIB
_SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "pit"}
# A clock before this second (2024) was not set.
_CLOCK_WAS_SET_S = 1704067200


# ---- what is installed and set ----
def check_versions(machine: Machine) -> Iterator[Finding]:
    """Checks that torch and tutti are installed and fit together."""
    packages = machine.packages
    found = f"tutti {packages.tutti or 'is not installed'}, torch {packages.torch or 'is not installed'}"
    minor = ".".join((packages.torch or "").split(".")[:2])
    if packages.torch is None:
        yield Finding(PROBLEM, "versions", found, "install torch in this Python")
    elif packages.built_for and minor not in packages.built_for:
        yield Finding(PROBLEM, "versions", f"{found}; tutti was built for torch {', '.join(packages.built_for)}",
                      "install that torch, or build tutti for this one (docs/installing.md)")
    elif not packages.built_for:
        yield Finding(PROBLEM, "versions", f"{found}; tutti was built for another Python",
                      "install tutti with this Python (docs/installing.md)")
    else:
        yield Finding(OK, "versions", found)


def check_settings(machine: Machine) -> Iterator[Finding]:
    """Checks that all variables TUTTI_… are settings, and that numbers are in their ranges."""
    rows = {row["name"]: row for row in machine.settings}
    mine = {name: value for name, value in sorted(machine.environment.items()) if name.startswith("TUTTI_")}
    faults = 0
    for name, value in mine.items():
        if name not in rows:
            nearest = difflib.get_close_matches(name, rows, 1)
            remedy = f"did you mean {nearest[0]}?" if nearest else "docs/settings.md lists the settings"
            yield Finding(WARNING, "settings", f"{name} is unknown and has no effect", remedy)
            faults += 1
        elif not _is_within(value, rows[name]["range"]):
            yield Finding(WARNING, "settings", f"{name}={value} is out of range and has no effect",
                          f"allowed: {rows[name]['range']}")
            faults += 1
    if not faults:
        told = " ".join(f"{name}={value}" for name, value in mine.items() if value)
        yield Finding(OK, "settings", told or "none is set")


def _is_within(value: str, allowed: str) -> bool:
    """Returns whether a value is in a range of `tutti info`, such as "0 to 8" or "1 or more"; True for other texts."""
    match = re.fullmatch(r"(-?\d+) (?:to (-?\d+)|or more)", allowed)
    if not match or not value:
        return True
    if not re.fullmatch(r"[+-]?\d+", value):
        return False
    return int(match[1]) <= int(value) and (match[2] is None or int(value) <= int(match[2]))


# ---- limits and memory ----
def check_limits(machine: Machine) -> Iterator[Finding]:
    """Checks the limits of open files, locked memory and file sizes."""
    files, ranks = machine.limits.get("nofile"), machine.number("WORLD_SIZE") or 1
    needed = _OWN_FILES + _FILES_OF_PEER * ranks
    if files is not None and files < needed:
        yield Finding(PROBLEM, "open files", f"the limit is {files}; {ranks} ranks need up to {needed}",
                      "ulimit -n 65536, or --ulimit nofile=65536 for a container")
    else:
        yield Finding(OK, "open files", f"the limit is {_limit_text(files)}")
    locked, has_rdma = machine.limits.get("memlock"), bool(_names_in(machine, "sys/class/infiniband"))
    if has_rdma and locked is not None:
        yield Finding(WARNING, "locked memory", f"the limit is {_limit_text(locked, 'bytes')}, and RDMA needs more",
                      "ulimit -l unlimited, or --ulimit memlock=-1 for a container")
    else:
        yield Finding(OK, "locked memory", f"the limit is {_limit_text(locked, 'bytes')}"
                      + ("" if has_rdma else "; only RDMA needs it, and there is no RDMA device"))
    size = machine.limits.get("fsize")
    if size is not None:
        yield Finding(WARNING, "file size", f"the limit is {_limit_text(size, 'bytes')}, also for shared memory",
                      "ulimit -f unlimited")


def _limit_text(limit: int | None, unit: str = "") -> str:
    return "unlimited" if limit is None else f"{limit} {unit}".strip()


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Checks free memory, shared memory and /dev/shm."""
    available = re.search(r"^MemAvailable:\s*(\d+) kB", machine.read("proc/meminfo") or "", re.MULTILINE)
    limit = _cgroup_limit(machine, "memory.max")
    free = int(available[1]) * KIB if available else None
    text = "unknown" if free is None else f"{_size_text(free)} are free"
    if limit is not None and (free is None or limit < free):
        text, free = f"{_size_text(limit)}, the limit of the container or service", limit
    if free is not None and free < _LITTLE_MEMORY:
        yield Finding(WARNING, "memory", text, "end other programs or raise the limit: a kernel that is short of "
                      "memory kills ranks")
    else:
        yield Finding(OK, "memory", text)
    if machine.shared_memory_error:
        yield Finding(PROBLEM, "shared memory", f"memfd_create fails: {machine.shared_memory_error}",
                      "allow it (seccomp profile of the container, ulimit -f); ranks of one host need it")
    else:
        yield Finding(OK, "shared memory", "memfd_create works")
    yield from _check_dev_shm(machine)


def _check_dev_shm(machine: Machine) -> Iterator[Finding]:
    """Checks the size of /dev/shm, which is in its options as a mounted file system."""
    mounted = re.search(r"^\S+ /dev/shm tmpfs (\S+)", machine.read("proc/self/mounts") or "", re.MULTILINE)
    size = re.search(r"(?:^|,)size=(\d+)k", mounted[1]) if mounted else None
    if size and int(size[1]) <= _LITTLE_SHM_KIB:
        yield Finding(WARNING, "/dev/shm", f"{_size_text(int(size[1]) * KIB)}; tutti needs none, but workers of a "
                      "DataLoader and gloo do", "--shm-size=1g or --ipc=host for a container")


def _cgroup_limit(machine: Machine, name: str) -> int | None:
    """Returns the smallest limit of this process's cgroup and those above it, or None. name: memory.max, or cpu.max,
    whose result is in thousandths of a core."""
    match = re.search(r"^0::/(.*)$", machine.read("proc/self/cgroup") or "", re.MULTILINE)
    folder = PurePosixPath("sys/fs/cgroup") / (match[1] if match else "")
    limits = []
    for place in (folder, *folder.parents):
        words = (machine.read(str(place / name)) or "").split()
        if words and words[0].isdecimal():
            limits.append(int(words[0]) * 1000 // int(words[1]) if len(words) > 1 else int(words[0]))
    return min(limits, default=None)


def _size_text(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size // MIB} MiB"


# ---- cores ----
def check_cores(machine: Machine) -> Iterator[Finding]:
    """Compares the cores with the ranks of this host and their threads, and with a limit of processor time."""
    ranks, threads = machine.number("LOCAL_WORLD_SIZE") or 1, machine.number("OMP_NUM_THREADS")
    found = f"{_count(machine.cores, 'core')}, {_count(ranks, 'rank')}"
    found += ", OMP_NUM_THREADS is not set" if threads is None else f" of {_count(threads, 'thread')}"
    if ranks > machine.cores:
        yield Finding(WARNING, "cores", found, "ranks that share a core wait for one another: start fewer ranks, or "
                      "allow more cores (taskset, numactl, limits of a container)")
    elif ranks * (threads or (machine.cores if ranks > 1 else 1)) > machine.cores:
        yield Finding(WARNING, "cores", found, f"OMP_NUM_THREADS={machine.cores // ranks}, or tutti run --bind "
                      "(docs/operating.md)")
    else:
        yield Finding(OK, "cores", found)
    quota = _cgroup_limit(machine, "cpu.max")
    if quota is not None and quota < 1000 * min(ranks, machine.cores):
        yield Finding(WARNING, "processor time", f"the container or service may use {quota / 1000:g} cores",
                      "allow a core for each rank: ranks that wait for processor time delay all others")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# ---- the kernel ----
def check_kernel(machine: Machine) -> Iterator[Finding]:
    """Checks the clock, transparent pages, reading of other processes, and whether this is a container."""
    source = machine.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if time.time() < _CLOCK_WAS_SET_S:
        yield Finding(WARNING, "clock", "the date is before 2024", "set the clock: certificates and logs need it")
    elif source in _SLOW_CLOCKS:
        yield Finding(WARNING, "clock", f"the kernel reads the time from {source}, which is slow",
                      "use tsc: see /sys/devices/system/clocksource/clocksource0 and the log of the kernel")
    else:
        yield Finding(OK, "clock", f"the kernel reads the time from {source or 'an unknown source'}")
    pages = re.search(r"\[(\w+)\]", machine.read("sys/kernel/mm/transparent_hugepage/enabled") or "")
    if pages:
        yield Finding(OK, "huge pages", f"transparent: {pages[1]}")
    scope = machine.read("proc/sys/kernel/yama/ptrace_scope") or "0"
    if scope != "0" and not machine.is_root:
        yield Finding(WARNING, "single copy", f"kernel.yama.ptrace_scope is {scope}, so ranks cannot read each other's "
                      "tensors directly, and large tensors take one copy more", "sysctl -w kernel.yama.ptrace_scope=0")
    else:
        yield Finding(OK, "single copy", "ranks may read each other's tensors")
    if kind := _container_kind(machine):
        yield Finding(OK, "container", f"{kind}; its limits are those above, its network may differ from the host's")


def _container_kind(machine: Machine) -> str:
    """Returns the kind of container in which this process runs, or ""."""
    if "KUBERNETES_SERVICE_HOST" in machine.environment:
        return "Kubernetes"
    for path, kind in ((".dockerenv", "Docker"), ("run/.containerenv", "Podman")):
        if (machine.root / path).exists():
            return kind
    return machine.environment.get("container", "")


def _names_in(machine: Machine, folder: str) -> list[str]:
    try:
        return [path.name for path in (machine.root / folder).iterdir()]
    except OSError:
        return []


CHECKS = (check_versions, check_settings, check_limits, check_memory, check_cores, check_kernel)
