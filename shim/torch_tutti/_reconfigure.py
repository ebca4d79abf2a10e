"""Changes the members of the default group: removes ranks that have died, adds new ones, and makes the group usable
after any error. The extension does it (shim/reconfigure.cpp); this module updates torch's own tables of groups.

A group of torch before 2.14 has a constant rank and size. There the default group is destroyed, and init_process_group
makes it again around the extension's new group, which has joined already.
"""
from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Set
from datetime import timedelta
from types import ModuleType
from typing import Any

COUNT_TAG = 0x7463_6e74                     # of the messages with counts of groups
_replacing = threading.local()
"""`made`: the extension's group that the next init_process_group of this thread gets from make_group(), or None."""


def reconfigure_handle() -> str:
    """Returns a text that names this process as a member of the default group, for reconfigure() on every member. The
    program passes it to the other members, for example through its store. It is good for one reconfigure() of this
    process, so get it again after each, also after one that failed. Uses the store once.

    Raises ValueError if the default group is not tutti's alone, and AbortedError after shutdown.
    """
    return str(_find_default("reconfigure_handle")[1]._reconfigure_handle())


def reconfigure(handles: Iterable[str], *, uuid: int, timeout: timedelta | None = None) -> None:
    """Replaces the members of the default group by those that the handles name. Only these members call it, and all of
    them with the same arguments. It returns when all have joined, and works on a healthy group as well as after an
    error, a timeout, an abort or the death of a rank.

    handles: one of reconfigure_handle() for each member, that of this process included. A list gives the ranks: handle
    i becomes rank i. A set keeps the order of the former ranks.
    uuid: a number that this process has not given before. timeout: for the whole call; default: the group's timeout.

    Calls of other threads that are in the default group end with an AbortedError, and so do calls until this one
    returns. Groups that new_group made before fail from now on; make them again. From torch 2.14 on the objects of the
    default group stay valid. Before, torch.distributed.group.WORLD is another object.

    Raises ValueError for handles that are damaged, of another job, given twice, or without that of this process;
    MismatchError for a uuid that was already used, a stale handle, or members that disagree; TimeoutError that names
    the members that have not called it. After wrong arguments of this process the group is unchanged. After any other
    error all calls of the group are refused until the next reconfigure, with another uuid and new handles.
    """
    if isinstance(handles, str):
        raise TypeError("reconfigure: handles must be a list or a set of texts, not one text")
    group, backend = _find_default("reconfigure")
    if timeout is not None:
        from torch_tutti._compatibility import checked_timeout
        timeout = checked_timeout(timeout, "reconfigure")
    changed = backend._change_members(uuid, list(handles), not isinstance(handles, Set), timeout)
    if changed is backend:
        update_torch_tables(group, [backend])
    else:
        _replace_default(group, changed)


def update_torch_tables(group: Any, backends: list[Any]) -> None:
    """Updates torch's tables after the members of a group have changed, where torch changes groups (from 2.14 on).
    Collective over the new members: torch counts the groups that each has made, because the count is part of the names
    of new groups, and the highest count becomes the count of all. group: None: the default group. backends: the tutti
    backends of the group; does nothing if there are none."""
    if not backends:
        return
    world = _c10d()._world
    world.pg_group_ranks[group or world.default_pg] = {rank: rank for rank in range(backends[0].size())}
    world.group_count = _highest_count(backends[0], world.group_count)


def _highest_count(backend: Any, count: int) -> int:
    """Returns the highest count of all ranks of the group. Collective. The counts travel by messages, because other
    threads of a rank may already call collectives in the group."""
    import torch
    others = range(1, backend.size())
    counts = torch.full((backend.size(), 1), count)
    if backend.rank() > 0:
        backend.send([counts[0]], 0, COUNT_TAG).wait()
        backend.recv([counts[0]], 0, COUNT_TAG).wait()
        return int(counts[0])
    for work in [backend.recv([counts[rank]], rank, COUNT_TAG) for rank in others]:
        work.wait()
    highest = counts.max(0).values
    for work in [backend.send([highest], rank, COUNT_TAG) for rank in others]:
        work.wait()
    return int(highest)


def make_group(group_class: Any, options: Any, timeout: timedelta, group_options: Any) -> Any:
    """Returns a new group of the extension for torch, or the one that _replace_default() has prepared. group_class:
    ProcessGroupTutti. options: torch's `_DistributedBackendOptions`. A group of some ranks of the default group fails
    when the members of the default group change."""
    replacement, _replacing.made = getattr(_replacing, "made", None), None
    if replacement is not None:
        return replacement
    if options.global_ranks_in_group and group_options.enable_reconfigure:
        raise ValueError(f"group {options.group_id}: enable_reconfigure is for the default group; after its "
                         "reconfigure make the other groups again")
    default_backend = _default_tutti_backend() if options.global_ranks_in_group else None
    changes = default_backend._begin_part() if default_backend is not None else 0
    part = group_class(store=options.store, rank=options.group_rank, size=options.group_size, timeout=timeout,
                group=options.group_id, options=group_options)
    if default_backend is not None:
        default_backend._adopt_part(part, changes)
    return part


def _c10d() -> ModuleType:
    """Returns torch's module distributed_c10d, which has the tables of groups."""
    return sys.modules["torch.distributed.distributed_c10d"]


def _default_tutti_backend() -> Any:
    """Returns the default group's backend if it is tutti's, else None."""
    from torch_tutti._extension import backend_of
    group = _c10d()._world.default_pg
    for device in group._device_types if group is not None else ():
        backend = backend_of(group, device)
        if backend is not None:
            return backend
    return None


def _find_default(call: str) -> tuple[Any, Any]:
    """Returns the default group and its only backend. Raises ValueError if it does not run on tutti alone, or if
    torch's debugging wrapper hides a change of its members. call: the name of the called function, for error texts."""
    import torch.distributed as dist
    from torch_tutti._calls import group_of
    group = group_of(call, None)
    backend, config = _default_tutti_backend(), dist.get_backend_config()
    backend_names = {pair.partition(":")[2] for pair in config.split(",")}
    if backend is None or len(backend_names) > 1:
        raise ValueError(f"{call}: the default group must have tutti as its only backend, but it runs on {config}")
    if hasattr(group, "reconfigure") and dist.get_debug_level() == dist.DebugLevel.DETAIL:
        raise ValueError(f"{call}: torch's debugging wrapper does not follow a change of the members; set "
                         "TORCH_DISTRIBUTED_DEBUG to INFO or OFF")
    return group, backend


def _hook_without_rank(hook: Any) -> Any:
    """Returns the exception hook that torch's init_process_group has wrapped in `hook`, or `hook` itself if torch has
    not made it. torch's hook puts the rank before each line of a traceback."""
    import inspect
    while getattr(hook, "__qualname__", "") == "init_process_group.<locals>._distributed_excepthook":
        wrapped = inspect.getclosurevars(hook).nonlocals.get("old_hook")
        if wrapped is None:
            break
        hook = wrapped
    return hook


def _replace_default(group: Any, backend: Any) -> None:
    """Destroys the default group, whose membership has ended, and makes it again around `backend`, the extension's
    group of the new members."""
    import torch.distributed as dist
    name = _c10d()._world.pg_map[group][0]
    dist.destroy_process_group()
    _replacing.made = backend
    # init_process_group wraps the hook again, with the new rank.
    sys.excepthook = _hook_without_rank(sys.excepthook)
    try:
        dist.init_process_group(name, store=dist.PrefixStore(f"torch/{backend._membership}", backend._store),
                                rank=backend.rank(), world_size=backend.size(), timeout=backend.options.timeout)
    finally:
        _replacing.made = None
