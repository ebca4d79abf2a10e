"""The square roots of torch's default optimizers. With MKL, torch.sqrt is not correctly rounded, and the bits of Adam
and AdamW without fused=True depend on it."""
from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch

# MKL's mode in torch.sqrt: VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE
_MODE = 0x140102
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class SquareRoots(NamedTuple):
    """A function of the form of tutti_square_roots and its mode. function: None for correctly rounded square roots."""
    function: Any
    mode: int


ROUNDED = SquareRoots(None, 0)


@functools.cache
def square_roots_of_torch() -> SquareRoots | None:
    """Returns the function with the results of torch.sqrt for float32 on this CPU. None: no known function has them."""
    numbers = torch.rand(4096, generator=torch.Generator().manual_seed(1)) ** 8
    expected = numbers.sqrt()
    if torch.equal(numbers.double().sqrt().float(), expected):
        return ROUNDED
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function = FUNCTION(("vmsSqrt", library))
    except (AttributeError, OSError):
        return None
    found = torch.empty_like(numbers)
    function(len(numbers), numbers.data_ptr(), found.data_ptr(), _MODE)
    return SquareRoots(function, _MODE) if torch.equal(found, expected) else None


def square_roots_of(rule: str, groups: list[dict[str, Any]]) -> SquareRoots | None:
    """Returns the square roots with which the core's rule has the bits of torch's optimizer with these groups, or None
    if the core cannot have them."""
    fused = {bool(group.get("fused")) for group in groups} if rule in ("adam", "adamw") else {True}
    if len(fused) > 1:
        return None
    return ROUNDED if fused.pop() else square_roots_of_torch()
