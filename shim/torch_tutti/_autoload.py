"""Registers the backend "tutti" in torch. torch calls `register` at the end of `import torch`, in every process, even
if it never uses tutti. So no library is loaded before the first group is made. `register` must not raise, because
that would break `import torch`, and it must not import torch, which is not complete yet when a program imports this
package first. If TUTTI_TAKE_OVER is set, `register` also begins the take-over (`_takeover`); if TUTTI_BIND is set, it
binds the process to cores (`_binding`), before torch starts threads.
"""
from __future__ import annotations

import os
import sys
from typing import Any

problem: str | None = None
"""Why registering the name failed, if it did; `tutti info` shows it."""


def create(options: Any, group_options: Any) -> Any:
    """Creates this rank's part of a group. torch calls it for each new tutti group.

    options: torch's `_DistributedBackendOptions` (store, group_rank, group_size, timeout, group_id and, except for the
    default group, global_ranks_in_group). group_options: the `pg_options` of the caller, a `torch_tutti.Options` or
    None. Raises TypeError for other pg_options, except in a take-over, which ignores them.
    """
    from copy import copy

    from torch_tutti import (_binding, _compatibility, _debug, _debug_server, _reconfigure, _recorder, _stacks,
                             _takeover)
    from torch_tutti._extension import load
    extension = load()
    _binding.check()
    timeout = _compatibility.checked_timeout(_debug.timeout(options.timeout), f"group {options.group_id}")
    if group_options is not None and not isinstance(group_options, extension.Options):
        if not _takeover.accepts_foreign_options(group_options):
            kind = f"{type(group_options).__module__}.{type(group_options).__qualname__}"
            raise TypeError(f"pg_options of a tutti group must be torch_tutti.Options, not {kind}")
        group_options = None
    # a copy, because the caller may give the same object to several groups
    group_options = copy(group_options) if group_options is not None else extension.Options()
    group_options.global_ranks_in_group = options.global_ranks_in_group
    # torch has had this option since 2.14
    group_options.enable_reconfigure |= getattr(options, "enable_reconfigure", False)
    _compatibility.install()
    _recorder.start(extension, options)
    _debug.start(extension)
    _stacks.start()
    _debug_server.register(extension)
    return _reconfigure.make_group(extension.ProcessGroupTutti, options, timeout, group_options)


def register() -> None:
    """Registers "tutti" in torch, which calls this entry point. Stores the text of an error in `problem` instead of
    raising it."""
    global problem
    try:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available():
            problem = "this torch has no torch.distributed"
        elif "tutti" not in distributed.Backend.backend_list:
            distributed.Backend.register_backend("tutti", create, extended_api=True, devices=["cpu", "cuda"])
        if problem is None and "TUTTI_TAKE_OVER" in os.environ:
            from torch_tutti._takeover import from_environment
            from_environment()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if os.environ.get("TUTTI_BIND"):
        from torch_tutti._binding import bind
        bind()
