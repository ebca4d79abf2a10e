"""The operations after a row-parallel layer in inference, as one operation: the sum of the ranks' outputs, the residual
connection, and the norm before the next layer. Importing this module imports torch.distributed."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from torch_tutti._calls import group_of
from torch_tutti._extension import load

_all_reduce_norm = load()._all_reduce_norm
_KINDS = {"rms": False, "layer": True}                  # True: the mean is subtracted


def all_reduce_norm(tensor: Tensor, weight: Tensor | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, eps: float = 1e-6, kind: str = "rms", own_rows: bool = False,
                    group: ProcessGroup | None = None) -> None:
    """Sums `tensor` [..., columns] over the ranks, adds `residual`, and normalises each row, in place; `residual`
    becomes the rows before the norm. On tutti this is one operation, bit-identical to `dist.all_reduce(tensor);
    residual += tensor` and a norm of the sum that computes in float32 and rounds once. For inference: there is no
    gradient. float32, bfloat16, float16. Blocking; all ranks of the group must call it, with the same sizes and
    options.

    weight, bias: [columns], of the tensor's type, the same on all ranks. kind: "rms", x / sqrt(mean(x²) + eps) * weight
    + bias, or "layer", which first subtracts the mean from x. residual: as `tensor`, the same on all ranks. own_rows: a
    rank passes and gets the residual of only those rows that norm_rows() returns. On tutti each row is then normalised
    on one rank, which is faster from about two rows for each rank on; all ranks must be on one host, else
    NotImplementedError. group: of any backend (other backends run the operations one by one); None: the default group.
    Raises ValueError for arguments that do not fit, and the errors of all_reduce.
    """
    subtracts_mean = _KINDS.get(kind)
    if subtracts_mean is None:
        raise ValueError(f'all_reduce_norm: kind "{kind}" is unknown: use "rms" or "layer"')
    chosen = group_of("all_reduce_norm", group)
    if torch.is_grad_enabled():
        _check_no_gradient(input=tensor, weight=weight, bias=bias, residual=residual)
    if not _all_reduce_norm(tensor, weight, bias, residual, eps, subtracts_mean, own_rows, chosen):
        _sum_then_normalise(tensor, weight, bias, residual, eps, subtracts_mean, own_rows, chosen)


def _check_no_gradient(**tensors: Tensor | None) -> None:
    """Raises ValueError if one of these tensors requires a gradient. tensors: by the name that the error gives them;
    None is allowed."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise ValueError(f"all_reduce_norm: the {name} requires a gradient, but all_reduce_norm has no backward "
                             "pass: use it for inference, under torch.no_grad()")


def norm_rows(rows: int, group: ProcessGroup | None = None) -> slice:
    """Returns the rows that this rank normalises under `own_rows`. rows: the number of rows of the tensor. Ranks get
    equal parts in the order of ranks; the last ranks may get fewer rows, or none."""
    if rows < 0:
        raise ValueError(f"norm_rows: {rows} rows; there must be 0 or more")
    chosen = group_of("norm_rows", group)
    rows_per_rank = -(-rows // chosen.size())
    first = min(rows_per_rank * chosen.rank(), rows)
    return slice(first, min(first + rows_per_rank, rows))


def _sum_then_normalise(tensor: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
                        eps: float, subtracts_mean: bool, own_rows: bool, group: ProcessGroup) -> None:
    """Does the work of all_reduce_norm by torch's operations, for groups of other backends than tutti."""
    import torch.distributed as dist
    rows = tensor.view(-1, tensor.shape[-1])
    own = rows[norm_rows(len(rows), group)] if own_rows else rows
    if own_rows and residual is not None:                   # one rank has the residual of a row, and adds it to the sum
        own += residual.view_as(own)
    dist.all_reduce(tensor, group=group)
    if not own_rows and residual is not None:
        own += residual.view_as(own)
    if residual is not None:
        residual.view_as(own).copy_(own)
    values = rows.float()
    if subtracts_mean:
        values = values - values.mean(-1, keepdim=True)
    values = values * (values.square().mean(-1, keepdim=True) + eps).rsqrt()
    values = values if weight is None else values * weight.float()
    rows.copy_(values if bias is None else values + bias.float())
