"""Calls that torch reserves to other backends, by their names or classes, although tutti has what they need.

`install` puts functions of ours before torch's when the first tutti group of the process is made; a program that never
makes one keeps torch as it is, and `undo` gives it back. Each of them asks whether the group is tutti's, and calls
torch's own if it is not. Code that bound torch's function earlier, by `from torch.distributed import
monitored_barrier`, still meets torch's refusal; `torch_tutti.monitored_barrier` is for that.
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

FOR_EVER = timedelta(days=36500)     # 64 bits hold the nanoseconds of 292 years
# Of torch: some are private, but what torchtitan and others call.
KNOWN = {"monitored_barrier": ("group", "timeout", "wait_all_ranks"), "_set_pg_timeout": ("timeout", "group"),
         "set_timeout": ("timeout", "group"), "_coalescing_manager": ("group", "device", "async_ops"),
         "_reconfigure": ("uuid", "handles", "group", "timeout", "hints"), "_time_estimator": ("group", "device")}
_installing = threading.Lock()
_replaced: Replacements | None = None


def install() -> None:
    """Does something only the first time, and after undo()."""
    global _replaced
    with _installing:
        if _replaced is None:
            _replaced = Replacements()
            _replace(_replaced)


def undo() -> None:
    """Until the next group is made. What torch reserves to other backends it then refuses to tutti's groups."""
    global _replaced
    with _installing:
        if _replaced is not None:
            _replaced.undo()
            _replaced = None


def _replace(replaced: Replacements) -> None:
    import torch
    import torch.distributed as distributed
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    befores = (_before_barrier, _before_set_timeout, _before_set_timeout, _around_coalescing, _after_reconfigure,
               _around_estimate)
    for (name, parameters), before in zip(KNOWN.items(), befores):
        original = getattr(c10d, name, None)
        if original is None:
            continue
        if parameters_of(original) != parameters:
            _log.write("warn", f"{name} of torch {torch.__version__} takes {', '.join(parameters_of(original))}, but "
                               f"tutti expects {', '.join(parameters)}: torch's own function stays in place, and may "
                               "refuse groups of tutti")
            continue
        ours = before(original)
        for module in c10d, distributed:
            if getattr(module, name, None) is original:
                replaced.put(module, name, ours)


def limit(timeout: timedelta, of: str) -> timedelta:
    """A timeout that is as long as it says, also in torch's arithmetic. Raises ValueError for one that is none."""
    if timeout < timedelta(milliseconds=1):
        raise ValueError(f"{of}: a timeout of {timeout.total_seconds():g} s; it must be at least a millisecond. For "
                         "no timeout use timedelta(days=36500): torch cannot represent timedelta.max")
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
    from torch_tutti._calls import group_of
    group = group_of("tutti", group)
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
        if group == distributed.GroupMember.NON_GROUP_MEMBER or not (ours := backends_of(group)):
            return original(timeout, group)
        for backend in ours:
            backend._set_default_timeout(limit(timeout, original.__name__))
        others = [backend for backend in _all_backends(group) if backend not in ours]
        if others and not hasattr(others[0], "set_timeout"):        # torch before 2.14
            return original(timeout, group)
        for backend in others:
            backend.set_timeout(timeout)
    return set_timeout


def _after_reconfigure(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reconfigure(uuid: int, handles: Any, group: Any = None, timeout: Any = None, hints: Any = None) -> Any:
        from torch_tutti import _reconfigure
        work = original(uuid, handles, group, timeout, hints)
        _reconfigure.follow(group, backends_of(group))
        return work
    return reconfigure


def _around_coalescing(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own (distributed_c10d.py, `_coalescing_manager`) does not end when its block raises, or a call that it
    makes at the end of the block: the group stays in `pg_coalesce_state`, and every later collective of it is taken
    down there and never started; or what the group coalesces on this thread stays open."""
    @functools.wraps(original)
    @contextlib.contextmanager
    def coalescing(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        from torch.distributed import distributed_c10d
        group = group or distributed_c10d.GroupMember.WORLD
        begun = False
        try:
            with original(group, device, async_ops) as manager:
                begun = True
                yield manager
        except BaseException:
            if begun:
                distributed_c10d._world.pg_coalesce_state.pop(group, None)
            for backend in backends_of(group) if begun and device else []:
                backend._drop_coalescing()
            raise
    return coalescing


def _around_estimate(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's own does not end the estimate when its block raises: later collectives of the thread would not run."""
    @functools.wraps(original)
    @contextlib.contextmanager
    def estimator(group: Any = None, device: Any = None) -> Iterator[Any]:
        try:
            with original(group, device) as estimate:
                yield estimate
        except BaseException:
            for backend in backends_of(group):
                backend._drop_time_estimate()
            raise
    return estimator
