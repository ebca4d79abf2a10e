"""The layout of a batch: which rows travel to which rank. All ranks compute it from the counts of all ranks."""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import all_reduce


@dataclass
class Layout:
    """The layout of one batch, on one rank. All tensors are int64 on the CPU."""
    group: dist.ProcessGroup
    rank: int
    chosen: Tensor                          # [tokens, choices]: expert numbers, or -1
    placed: Tensor                          # [tokens, choices]: place among this rank's rows for the expert, or -1
    by_rank: Tensor                         # [ranks, experts]: rows that each rank sends to each expert
    first: Tensor                           # [ranks, experts]: the row of the owner's array where they begin
    rows: int                               # length of this rank's array
    padded: int                             # rows reserved for each rank and expert, or 0
    columns: int
    dtype: torch.dtype
    device: torch.device

    @property
    def mine(self) -> Tensor:
        """[ranks, experts of this rank]: rows."""
        return self.own(self.by_rank)

    def own(self, of_all: Tensor) -> Tensor:
        """The columns of this rank's experts in a tensor [ranks, experts] of all."""
        each = of_all.shape[1] // len(of_all)
        return of_all[:, self.rank * each:(self.rank + 1) * each]

    def clear_padding(self, array: Tensor) -> None:
        """Sets the rows that no rank has sent to zero, if the array is padded."""
        if not self.padded:
            return
        parts = array.view(self.mine.shape[1], len(self.by_rank), self.padded, self.columns)
        for rank, counts in enumerate(self.mine.tolist()):
            for expert, count in enumerate(counts):
                parts[expert, rank, count:].zero_()

    def meet(self, failed: bool = False) -> None:
        meet(self.group, failed)


@contextmanager
def fail_all_on_error(refuse: Callable[[], None]) -> Iterator[None]:
    """A context for work before a barrier. If the work raises, calls refuse(), which makes the other ranks fail too."""
    try:
        yield
    except Exception:
        refuse()
        raise


def check_tensors(what: str, **given: Any) -> None:
    """Raises TypeError if one of the named arguments of the call `what` is not a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{what}: {name} must be a tensor, not {type(value).__name__}")


def meet(group: dist.ProcessGroup, failed: bool = False) -> None:
    """A barrier that carries failures. Writes to shared memory before it are visible to all ranks after it. failed:
    this rank is about to raise its own error; all other ranks raise ValueError with its number."""
    culprit = torch.tensor([group.rank() + 1.0 if failed else 0.0])
    all_reduce(culprit, dist.ReduceOp.MAX, group)
    if culprit and not failed:
        raise ValueError(f"experts: rank {int(culprit) - 1} of the group got invalid arguments; its own error says "
                         "which")
