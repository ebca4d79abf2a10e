"""Calls that torch reserves to other backends, by their names or classes, although tutti has what they need.

`install` puts functions of ours before torch's when the first tutti group of the process is made; a program that never
makes one keeps torch as it is. Each of them asks whether the group is tutti's, and calls torch's own if it is not. Code
that bound torch's function earlier, by `from torch.distributed import monitored_barrier`, still meets torch's refusal;
`torch_tutti.monitored_barrier` is for that.
"""
from __future__ import annotations

import contextlib
import functools
import sys
from datetime import timedelta
from typing import Any, Callable, Iterator

FOR_EVER = timedelta(days=36500)     # 64 bits hold the nanoseconds of 292 years
_installed = False


def install() -> None:
    """Does something only the first time."""
    global _installed
    if _installed:
        return
    _installed = True
    import torch.distributed as distributed
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    c10d.monitored_barrier = distributed.monitored_barrier = _before_barrier(c10d.monitored_barrier)
    if hasattr(c10d, "_set_pg_timeout"):                # private, but what torchtitan and others call
        c10d._set_pg_timeout = _before_set_timeout(c10d._set_pg_timeout)
    c10d._coalescing_manager = distributed._coalescing_manager = _around_coalescing(c10d._coalescing_manager)


def limit(timeout: timedelta, of: str) -> timedelta:
    """A timeout that is as long as it says, also in torch's arithmetic. Raises ValueError for one that is none."""
    if timeout < timedelta(milliseconds=1):
        raise ValueError(f"{of}: a timeout of {timeout.total_seconds():g} s; it must be at least a millisecond. For "
                         "ever is timedelta(days=36500): timedelta.max is more than torch can count")
    return min(timeout, FOR_EVER)


def monitored_barrier(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
    """A barrier that says who did not come: `torch.distributed.monitored_barrier`, for a tutti group of any name.

    group: default: all ranks. timeout: default: that of the group. wait_all_ranks: rank 0 waits for all and names every
    rank that is missing, instead of the first. Does nothing on ranks outside the group. Raises RuntimeError that names
    the ranks, and ValueError for a group of another backend.
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
    given = {} if timeout is None else {"timeout": min(timeout, FOR_EVER)}
    backends[0].monitored_barrier(wait_all_ranks=wait_all_ranks, **given)


def backends_of(group: Any) -> list[Any]:
    """The tutti backends of a group (None: the default group): one for all devices, or one for each."""
    from torch_tutti._extension import load
    return [backend for backend in _all_backends(group) if isinstance(backend, load().ProcessGroupTutti)]


def _all_backends(group: Any) -> list[Any]:
    """Inside torch's debugging wrapper, where there is one."""
    from torch.distributed import distributed_c10d
    group = group or distributed_c10d._get_default_group()
    found: list[Any] = []
    for device in group._device_types:
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)
        if backend not in found:
            found.append(backend)
    return found


def _before_barrier(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        import torch.distributed as distributed
        if group == distributed.GroupMember.NON_GROUP_MEMBER or not backends_of(group):
            return original(group, timeout, wait_all_ranks)
        if isinstance(timeout, (int, float)):           # as torch's own takes it
            timeout = timedelta(seconds=timeout)
        return monitored_barrier(group, timeout, wait_all_ranks)
    return barrier


def _before_set_timeout(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def set_timeout(timeout: timedelta, group: Any = None) -> None:
        import torch.distributed as distributed
        if group == distributed.GroupMember.NON_GROUP_MEMBER:
            return original(timeout, group)
        ours = backends_of(group)
        for backend in ours:
            backend._set_default_timeout(limit(timeout, "_set_pg_timeout"))
        if len(ours) < len(_all_backends(group)):       # torch would warn that it found nothing to do
            original(timeout, group)
    return set_timeout


def _around_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own (distributed_c10d.py, `_coalescing_manager`) does not end when its block raises: the group stays in
    `pg_coalesce_state`, and every later collective of it is taken down there and never started."""
    @functools.wraps(original)
    @contextlib.contextmanager
    def coalescing(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        from torch.distributed import distributed_c10d
        group = group or distributed_c10d._get_default_group()
        with original(group, device, async_ops) as manager:
            try:
                yield manager
            except BaseException:
                distributed_c10d._world.pg_coalesce_state.pop(group, None)
                if device and backends_of(group):
                    group._end_coalescing(device)
                raise
    return coalescing
