"""Clips the averaged gradients of one or several sharded models by their norm together."""
from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch_tutti.zero._optimizer import ZeroOptimizer


def clip_grad_norm_(optimizers: Sequence[ZeroOptimizer], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False, *,
                    part_groups: Sequence[dist.ProcessGroup | None] | None = None) -> torch.Tensor:
    """Clips the averaged gradients of all parameters of these optimizers together, like torch.nn.utils.clip_grad_norm_
    on one list of them: for several optimizers of a model, and for models whose groups differ (experts in one group of
    ranks, all else in another). The next steps scale the gradients. Returns the norm before clipping, in float64 if a
    gradient is float64, else in float32. Collective on the group of each optimizer, in the order of the list, also for
    ranks without gradients.

    part_groups: for each optimizer, the group of the ranks that train other parts of the same model (parts by tensor,
    pipeline or expert parallelism), whose norms count too; None: there are no other parts. Default: None for each."""
    groups = list(part_groups) if part_groups is not None else [None] * len(optimizers)
    if not optimizers or len(groups) != len(optimizers):
        raise ValueError(f"zero.clip_grad_norm_: {len(optimizers)} optimizers and {len(groups)} part_groups; give at "
                         "least one optimizer, and a group or None for each")
    kind = float(norm_type)
    norm = _combine([_add_parts(_norm_of(optimizer, kind), kind, group)
                     for optimizer, group in zip(optimizers, groups)], kind)
    if error_if_nonfinite and not norm < float("inf"):
        raise RuntimeError(f"The total norm of the gradients is {norm}, so it cannot be clipped; drop them with "
                           "zero_grad(), or allow it with error_if_nonfinite=False")
    for optimizer in optimizers:
        optimizer._gradients.scale *= min(1.0, float(max_norm) / (norm + 1e-6)) if norm == norm else norm
    is_double = any(p.dtype == torch.float64 for optimizer in optimizers for p in optimizer._gradients.parameters)
    return torch.tensor(norm, dtype=torch.float64 if is_double else torch.float32)


def _norm_of(optimizer: ZeroOptimizer, kind: float) -> float:
    """Returns the norm of all averaged gradients of an optimizer, equal on all ranks of its group. Collective."""
    gradients = optimizer._gradients
    if kind == 2.0:
        return optimizer._core.norm() * gradients.scale     # after the scaling of earlier calls
    return torch.linalg.vector_norm(torch.stack(gradients.all_norms(kind)), kind).item()


def _add_parts(norm: float, kind: float, group: dist.ProcessGroup | None) -> float:
    """Returns the norm of all parts that the ranks of a group have. norm: that of this rank's part; it is returned if
    the group is None. Collective."""
    if group is None:
        return norm
    norms = torch.empty(dist.get_world_size(group), dtype=torch.float64)
    dist.all_gather(list(norms.split(1)), torch.tensor([norm], dtype=torch.float64), group)
    return _combine(norms.tolist(), kind)


def _combine(norms: list[float], kind: float) -> float:
    """Returns the norm of all elements of several tensors. norms: that of each tensor. kind: the p of the p-norm."""
    if len(norms) == 1:
        return norms[0]
    each = torch.tensor(norms, dtype=torch.float64)
    return float(each.sum() if kind == 0 else torch.linalg.vector_norm(each, kind))
