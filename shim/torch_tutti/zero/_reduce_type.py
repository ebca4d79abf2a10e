"""The type in which the ranks sum gradients: that of the parameters, or float32 for parameters in 16 bits."""
from __future__ import annotations

from typing import Any, Iterable

import torch

from torch_tutti.compression import Compression
from torch_tutti.zero._core import DTYPES


def sums_in_float32(reduce_dtype: torch.dtype | None, gradients: Iterable[tuple[str, torch.dtype]],
                    compression: str | Compression | None = None) -> bool:
    """Returns True if gradients in 16 bits are to be summed in float32, and False if all are summed in their own types.
    reduce_dtype: an argument of zero.shard. gradients: name and type of each parameter in training. Raises ValueError
    if reduce_dtype is not a type of parameters, and NotImplementedError if these gradients cannot be summed in it."""
    if reduce_dtype is None:
        return False
    _check_type(reduce_dtype)
    others = [(name, dtype) for name, dtype in gradients if dtype != reduce_dtype]
    for name, dtype in others:
        if reduce_dtype != torch.float32 or dtype.itemsize != 2:
            raise NotImplementedError(f"zero.shard: reduce_dtype={reduce_dtype}, but the gradient of {name} is {dtype}"
                                      "; the ranks sum gradients in their own type, and those of 16 bits on request in "
                                      "torch.float32. For fewer bytes in messages use compression='bf16'")
    if others and compression is not None:
        raise NotImplementedError(f"zero.shard: reduce_dtype={reduce_dtype} and compression=, but the gradient of "
                                  f"{others[0][0]} is {others[0][1]}, which is compressed without a sum in float32; "
                                  "choose one of the two")
    return bool(others)


def _check_type(reduce_dtype: Any) -> None:
    """Raises ValueError if the argument is not a type of parameters."""
    if reduce_dtype not in DTYPES:
        raise ValueError(f"zero.shard: reduce_dtype={reduce_dtype!r}; it must be torch.float32, the type of the "
                         "gradients, or None")
