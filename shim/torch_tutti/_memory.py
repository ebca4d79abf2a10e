"""Tensors in memory that all ranks of a host can access directly, which saves a copy in large collectives. Results
never depend on where a tensor lies, and each rank may choose by itself."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._extension import load

_C = load()


def empty(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """Returns an uninitialised CPU tensor in shared memory, like `torch.empty(*size)`. A resize leaves it there.

    size: numbers, or one sequence of numbers. dtype: None: torch's default. Raises MemoryError with the size if memory
    is insufficient. `share_memory_()` and the queues of torch.multiprocessing move a tensor to other memory.
    """
    sizes = size[0] if len(size) == 1 and hasattr(size[0], "__len__") and getattr(size[0], "ndim", 1) else size
    return _C._shared_empty(list(sizes), dtype or torch.get_default_dtype()).requires_grad_(requires_grad)


shared_tensors = _C.shared_tensors


def share_buckets(model: DistributedDataParallel) -> DistributedDataParallel:
    """Makes torch put the buckets of gradients into shared memory when it rebuilds them, in one of the first
    iterations. Returns the model. Until then, and always if torch never rebuilds them (`find_unused_parameters=True`),
    they stay where the constructor put them, so call the constructor in a `shared_tensors` block:

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
    """Replaces the model's `_pre_forward`: calls it with shared memory switched on, and removes itself when torch has
    rebuilt the buckets. It is a function of the module, so that a copied or pickled model calls it with itself."""
    with shared_tensors():
        result = type(model)._pre_forward(model, *arguments, **keywords)
    if model._has_rebuilt_buckets:
        del model._pre_forward                              # uncovers the method of the class
    return result
