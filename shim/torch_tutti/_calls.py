"""The shortest way to the core from Python. `torch.distributed.all_reduce` spends more than half of the time of a small
all-reduce in Python (checks, a Work, its wait); this goes straight to the backend. Needs torch.distributed to be there.
"""
from __future__ import annotations

from torch import Tensor
from torch.distributed import GroupMember, ProcessGroup, ReduceOp

from torch_tutti._extension import load

_all_reduce = load()._all_reduce


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """As `torch.distributed.all_reduce(tensor, op, group)` when not asynchronous, in a third of the time for small
    tensors: all ranks' tensors, of any shape but the same, are reduced in place, and the call returns when this rank
    has the result. All ranks of the group must call it or torch's. It goes through torch while the group has hooks
    that see each call (docs/debugging.md), as every group has in torch 2.15 unless TORCH_FR_BUFFER_SIZE is 0.

    group: of any backend; None: the default group. Raises what torch's function raises, and ValueError when there is
    no group or this rank is not in it.
    """
    chosen = GroupMember.WORLD if group is None else group
    try:
        _all_reduce(tensor, op, chosen)
    except TypeError:
        group_of("all_reduce", group)
        raise


def group_of(what: str, group: ProcessGroup | None) -> ProcessGroup:
    """None: the default one. ValueError, which says what was called, where this rank is in no such group."""
    chosen = GroupMember.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroup):
        raise ValueError(f"{what}: this rank is in no such group; call init_process_group first, and call this only on "
                         "the ranks of the group") from None
    return chosen
