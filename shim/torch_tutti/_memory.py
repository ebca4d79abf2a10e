"""Tensors in memory that the ranks of a host can reach directly: large collectives on them leave out a copy. Results
never depend on where a tensor lies, and each rank may choose by itself."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._extension import load

_C = load()


def empty(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """As `torch.empty(*size)` on the CPU, in shared memory; a resize leaves it there.

    size: numbers, or one sequence of them. dtype: None: torch's default. Raises MemoryError that names the bytes that
    could not be had. `share_memory_()` and the queues of torch.multiprocessing move a tensor elsewhere.
    """
    sizes = size[0] if len(size) == 1 and hasattr(size[0], "__len__") and getattr(size[0], "ndim", 1) else size
    return _C._shared_empty(list(sizes), dtype or torch.get_default_dtype()).requires_grad_(requires_grad)


shared_tensors = _C.shared_tensors


def share_buckets(model: DistributedDataParallel) -> DistributedDataParallel:
    """Has the buckets of gradients in shared memory when torch rebuilds them, in one of the first iterations; returns
    the model. Until then, and for good if torch never rebuilds them (`find_unused_parameters=True`), they are where the
    constructor put them, so construct it in a `shared_tensors` block.

        with torch_tutti.shared_tensors():
            model = torch_tutti.share_buckets(DistributedDataParallel(module))
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"share_buckets takes a DistributedDataParallel, not {type(model).__name__}")
    if model._has_rebuilt_buckets:
        raise ValueError("share_buckets: torch has already rebuilt the buckets of this model, and does so only "
                         "once. Call it before the first iteration.")
    model._pre_forward = functools.partial(_pre_forward_shared, model)
    return model


def _pre_forward_shared(model: DistributedDataParallel, *arguments: Any, **keywords: Any) -> Any:
    """A function of the module, so that a model can be copied and pickled with it: the copy calls it with itself."""
    with shared_tensors():
        result = type(model)._pre_forward(model, *arguments, **keywords)
    if model._has_rebuilt_buckets:
        del model._pre_forward                              # the class's own is enough from now on
    return result
