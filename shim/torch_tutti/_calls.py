"""The shortest way from Python to the core. `torch.distributed.all_reduce` spends more than half of the time of a small
all-reduce in Python (checks, a Work, its wait); `all_reduce` here calls the backend directly. Importing this module
imports torch.distributed.
"""
from __future__ import annotations

from torch import Tensor
from torch.distributed import GroupMember, ProcessGroup, ReduceOp, get_backend

from torch_tutti._extension import backend_of, load

_all_reduce = load()._all_reduce


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """Reduces the tensors of all ranks in place and returns when this rank has the result, like
    `torch.distributed.all_reduce(tensor, op, group)`, in a third of its time for small tensors. Tensors have any shape,
    which is the same on all ranks. Every rank of the group must call this function or torch's. It goes through torch
    while the group has hooks that see each call (docs/debugging.md), as every group has in torch 2.15 unless
    TORCH_FR_BUFFER_SIZE is 0.

    group: of any backend; None: the default group. Raises what torch's function raises, and ValueError when there is no
    group or this rank is not in it.
    """
    chosen = GroupMember.WORLD if group is None else group
    try:
        _all_reduce(tensor, op, chosen)
    except TypeError:
        group_of("all_reduce", group)
        raise


def group_of(call: str, group: ProcessGroup | None) -> ProcessGroup:
    """Returns the group, or the default group for None. Raises ValueError if this rank is not in it, or if there is no
    default group. call: the beginning of the error's text: the function that the program called, or a part of
    tutti."""
    chosen = GroupMember.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroup):
        raise ValueError(f"{call}: this rank is in no such group; call init_process_group first, and call this only on "
                         "the ranks of the group") from None
    return chosen


def tutti_group_of(call: str, group: ProcessGroup | None) -> ProcessGroup:
    """Returns what group_of() returns. Also raises ValueError if the group's backend for CPU tensors is not tutti."""
    chosen = group_of(call, group)
    if backend_of(chosen) is None:
        raise ValueError(f"{call}: the group has no tutti backend for CPU tensors (its backend is "
                         f"{get_backend(chosen)})")
    return chosen
