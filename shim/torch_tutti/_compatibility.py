"""Makes some functions of torch accept tutti groups: those that torch reserves to other backends, but tutti supports.

`install` replaces these functions by wrappers when the first tutti group of the process is made. `undo` puts torch's
own functions back. A wrapper calls torch's function if the group is not tutti's. Code that bound torch's function
earlier, by `from torch.distributed import monitored_barrier`, still gets torch's error, and can call
`torch_tutti.monitored_barrier` instead.
"""
from __future__ import annotations

import contextlib
import functools
import sys
import threading
from datetime import timedelta
from typing import Any, Callable, Iterator

from torch_tutti import _log
from torch_tutti._replacements import Replacements, parameters_of

# torch computes in nanoseconds of 64 bits, which hold 292 years.
LONGEST_TIMEOUT = timedelta(days=36500)
# The functions of torch that are replaced, with the parameters that the wrappers expect. Some are private, but
# torchtitan and other programs call them.
KNOWN = {"monitored_barrier": ("group", "timeout", "wait_all_ranks"), "_set_pg_timeout": ("timeout", "group"),
         "set_timeout": ("timeout", "group"), "_coalescing_manager": ("group", "device", "async_ops"),
         "_reconfigure": ("uuid", "handles", "group", "timeout", "hints"), "_time_estimator": ("group", "device")}
_installing = threading.Lock()
_replacements: Replacements | None = None


def install() -> None:
    """Installs the wrappers, unless they are installed already."""
    global _replacements
    with _installing:
        if _replacements is None:
            _replacements = Replacements()
            _install_wrappers(_replacements)


def undo() -> None:
    """Puts torch's own functions back. torch then refuses these calls for tutti groups, until the next group is
    made."""
    global _replacements
    with _installing:
        if _replacements is not None:
            _replacements.undo()
            _replacements = None


def _install_wrappers(replacements: Replacements) -> None:
    """Replaces the functions of KNOWN in torch, and records them in `replacements`. A function that this torch lacks is
    left out; one with other parameters stays, and a warning is logged."""
    import torch
    import torch.distributed as distributed
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    wrap_functions = (_wrap_barrier, _wrap_set_timeout, _wrap_set_timeout, _wrap_coalescing, _wrap_reconfigure,
                      _wrap_estimator)
    for (name, parameters), wrap in zip(KNOWN.items(), wrap_functions):
        original = getattr(c10d, name, None)
        if original is None:
            continue
        if parameters_of(original) != parameters:
            _log.write("warn", f"{name} of torch {torch.__version__} takes {', '.join(parameters_of(original))}, but "
                               f"tutti expects {', '.join(parameters)}: torch's own function stays in place, and may "
                               "refuse groups of tutti")
            continue
        wrapper = wrap(original)
        for module in c10d, distributed:
            if getattr(module, name, None) is original:
                replacements.put(module, name, wrapper)


def checked_timeout(timeout: timedelta, what: str) -> timedelta:
    """Returns the timeout, but at most LONGEST_TIMEOUT. Raises ValueError for less than a millisecond. what: the group
    or the call, for the text of the error."""
    if timeout < timedelta(milliseconds=1):
        raise ValueError(f"{what}: a timeout of {timeout.total_seconds():g} s; it must be at least a millisecond. For "
                         "no timeout use timedelta(days=36500): torch cannot represent timedelta.max")
    return min(timeout, LONGEST_TIMEOUT)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """Waits until all ranks of the group have called it. Raises RuntimeError that names missing ranks. Works like
    `torch.distributed.monitored_barrier`, on a tutti group that was created under any backend name.

    group: None: the default group. timeout: None: the group's timeout. wait_all_ranks: rank 0 waits for all ranks and
    names every missing one, instead of the first. Does nothing on ranks outside the group. Raises ValueError for a
    group of another backend.
    """
    import torch.distributed as distributed
    if group == distributed.GroupMember.NON_GROUP_MEMBER:
        return
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"timeout of monitored_barrier must be a datetime.timedelta, not {type(timeout).__name__}")
    backends = backends_of(group)
    if not backends:
        raise ValueError("torch_tutti.monitored_barrier is for tutti groups, and this one runs on "
                         f"{distributed.get_backend_config(group)}: call torch.distributed.monitored_barrier")
    options = {} if timeout is None else {"timeout": min(timeout, LONGEST_TIMEOUT)}
    backends[0].monitored_barrier(wait_all_ranks=wait_all_ranks, **options)


def backends_of(group: Any) -> list[Any]:
    """Returns the tutti backends of a group: one for all devices, or one for each. None: the default group."""
    from torch_tutti._extension import load
    return [backend for backend in _all_backends(group) if isinstance(backend, load().ProcessGroupTutti)]


def _all_backends(group: Any) -> list[Any]:
    """Returns the different backends of a group, without the wrapper of TORCH_DISTRIBUTED_DEBUG. None: the default
    group."""
    from torch_tutti._calls import group_of
    group = group_of("tutti", group)
    backends: list[Any] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)
        if backend not in backends:
            backends.append(backend)
    return backends


def _backends_if_any(group: Any) -> list[Any]:
    """Returns what backends_of() returns, and an empty list where that raises, on a rank outside of the group and
    without a default group. torch's own function then raises torch's error."""
    from torch.distributed import GroupMember, ProcessGroup
    return backends_of(group) if isinstance(GroupMember.WORLD if group is None else group, ProcessGroup) else []


def _wrap_barrier(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a monitored_barrier that calls tutti's for tutti groups, else `original`."""
    @functools.wraps(original)
    def barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Runs tutti's monitored_barrier on a tutti group, else torch's. timeout: a timedelta, seconds, or None."""
        if not _backends_if_any(group):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):           # torch's own function accepts seconds
            timeout = timedelta(seconds=timeout)
        return monitored_barrier(group, timeout, wait_all_ranks)
    return barrier


def _wrap_set_timeout(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that sets the timeout of a tutti group, and calls `original` for others. A group may have
    further backends beside tutti, for other devices; each gets the timeout."""
    @functools.wraps(original)
    def set_timeout(timeout: timedelta, group: Any = None) -> None:
        """Sets the timeout of each backend of a tutti group, else calls torch's function."""
        if not (tutti_backends := _backends_if_any(group)):
            return original(timeout, group)
        for backend in tutti_backends:
            backend._set_default_timeout(checked_timeout(timeout, original.__name__))
        others = [backend for backend in _all_backends(group) if backend not in tutti_backends]
        if others and not hasattr(others[0], "set_timeout"):        # torch before 2.14
            return original(timeout, group)
        for backend in others:
            backend.set_timeout(timeout)
    return set_timeout


def _wrap_reconfigure(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `original`, then updates torch's tables for a tutti group."""
    @functools.wraps(original)
    def reconfigure(uuid: int, handles: Any, group: Any = None, timeout: Any = None, hints: Any = None) -> Any:
        """Changes the members by torch's function, then updates torch's tables."""
        from torch_tutti import _reconfigure
        work = original(uuid, handles, group, timeout, hints)
        _reconfigure.update_torch_tables(group, backends_of(group))
        return work
    return reconfigure


def _wrap_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a context manager that does as torch's `_coalescing_manager`, and ends the coalescing when an error is
    raised, by the block or by the calls at its end. torch's own does not: the group would stay in `pg_coalesce_state`,
    where every later collective is recorded and never started, or the backend would keep coalescing on this thread."""
    @functools.wraps(original)
    @contextlib.contextmanager
    def coalescing(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        """Does as torch's context manager. Drops what has been coalesced when an error is raised."""
        from torch.distributed import distributed_c10d
        group = group or distributed_c10d.GroupMember.WORLD
        has_begun = False
        try:
            with original(group, device, async_ops) as manager:
                has_begun = True
                yield manager
        except BaseException:
            if has_begun:
                distributed_c10d._world.pg_coalesce_state.pop(group, None)
            for backend in backends_of(group) if has_begun and device else []:
                backend._drop_coalescing()
            raise
    return coalescing


def _wrap_estimator(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a context manager that does as torch's `_time_estimator`, and ends the estimate when the block raises.
    torch's own does not: later collectives of the thread would not run."""
    @functools.wraps(original)
    @contextlib.contextmanager
    def estimator(group: Any = None, device: Any = None) -> Iterator[Any]:
        """Does as torch's context manager. Drops the estimate when an error is raised."""
        backends: list[Any] = []
        try:
            with original(group, device) as estimate:
                # The block may destroy the group.
                backends = backends_of(group)
                yield estimate
        except BaseException:
            for backend in backends:
                backend._drop_time_estimate()
            raise
    return estimator
