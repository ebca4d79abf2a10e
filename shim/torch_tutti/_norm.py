"""What follows a row-parallel layer when a model of several ranks infers: the sum of the ranks' outputs, the residual,
and the norm before the next layer, as one operation. Needs torch.distributed to be there."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torch_tutti._calls import group_of
from torch_tutti._extension import load

_all_reduce_norm = load()._all_reduce_norm
_KINDS = {"rms": False, "layer": True}


def all_reduce_norm(tensor: Tensor, weight: Tensor | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, eps: float = 1e-6, kind: str = "rms", own_rows: bool = False,
                    group: ProcessGroup | None = None) -> None:
    """Sums `tensor` [..., columns] over the ranks, adds `residual`, and normalises each row, in place; `residual`
    becomes what has been normalised. On tutti that is one operation, and the same to the bit as
    `dist.all_reduce(tensor); residual += tensor`, and the norm of it, whose arithmetic is in float32, rounded once. For
    inference: there is no gradient. float32, bfloat16, float16. Blocking; all ranks of the group must call it, with
    the same sizes and options.

    weight, bias: [columns], of the tensor's type, the same on all ranks. kind: "rms", x / sqrt(mean(x²) + eps) * weight
    + bias, or "layer", which takes the mean off x first. residual: as `tensor`, the same on all ranks.
    own_rows: a rank keeps the residual of those rows alone that norm_rows() names, and each row is worked on once; on
    tutti for the ranks of one host. Faster from two ranks and some rows on.
    group: of any backend (others do one after the other); None: the default group.
    Raises ValueError for what does not fit, and what all_reduce raises.
    """
    centred = _KINDS.get(kind)
    if centred is None:
        raise ValueError(f'all_reduce_norm: kind "{kind}" is unknown: use "rms" or "layer"')
    chosen = group_of("all_reduce_norm", group)
    if torch.is_grad_enabled():
        _check_no_gradient(input=tensor, weight=weight, bias=bias, residual=residual)
    if not _all_reduce_norm(tensor, weight, bias, residual, eps, centred, own_rows, chosen):
        _one_after_the_other(tensor, weight, bias, residual, eps, centred, own_rows, chosen)


def _check_no_gradient(**given: Tensor | None) -> None:
    for name, one in given.items():
        if one is not None and one.requires_grad:
            raise ValueError(f"all_reduce_norm: the {name} requires a gradient, but all_reduce_norm has no backward "
                             "pass: use it for inference, under torch.no_grad()")


def norm_rows(rows: int, group: ProcessGroup | None = None) -> slice:
    """Of so many rows those that this rank normalises under `own_rows`: as many as the other ranks, but for the last
    that have any."""
    if rows < 0:
        raise ValueError(f"norm_rows: {rows} rows; there must be 0 or more")
    chosen = group_of("norm_rows", group)
    each = -(-rows // chosen.size())
    first = min(each * chosen.rank(), rows)
    return slice(first, min(first + each, rows))


def _one_after_the_other(tensor: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
                         eps: float, centred: bool, own_rows: bool, group: ProcessGroup) -> None:
    import torch.distributed as dist
    rows = tensor.view(-1, tensor.shape[-1])
    mine = rows[norm_rows(len(rows), group)] if own_rows else rows
    if own_rows and residual is not None:                   # only one rank has it
        mine += residual.view_as(mine)
    dist.all_reduce(tensor, group=group)
    if not own_rows and residual is not None:
        mine += residual.view_as(mine)
    if residual is not None:
        residual.view_as(mine).copy_(mine)
    x = rows.float()
    if centred:
        x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    x = x if weight is None else x * weight.float()
    rows.copy_(x if bias is None else x + bias.float())
