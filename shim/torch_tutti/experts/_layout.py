"""Which rows of a batch go where, agreed on by all ranks."""
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
    """Of one batch, as this rank sees it. All tensors of numbers are int64 on the CPU."""
    group: dist.ProcessGroup
    rank: int
    chosen: Tensor                          # [tokens, choices]: experts, or -1
    placed: Tensor                          # the same: which of this rank's rows for its expert, or -1
    by_rank: Tensor                         # [ranks, experts]: rows
    first: Tensor                           # [ranks, experts]: where those begin in the owner's array
    rows: int                               # of this rank's array
    padded: int                             # rows of it for each rank and expert, or 0
    columns: int
    dtype: torch.dtype
    device: torch.device

    @property
    def mine(self) -> Tensor:
        """[ranks, experts of this rank]: rows."""
        return self.own(self.by_rank)

    def own(self, of_all: Tensor) -> Tensor:
        """Of [ranks, experts], the columns of this rank's experts."""
        each = of_all.shape[1] // len(of_all)
        return of_all[:, self.rank * each:(self.rank + 1) * each]

    def clear_padding(self, array: Tensor) -> None:
        if not self.padded:
            return
        parts = array.view(self.mine.shape[1], len(self.by_rank), self.padded, self.columns)
        for rank, counts in enumerate(self.mine.tolist()):
            for expert, count in enumerate(counts):
                parts[expert, rank, count:].zero_()

    def meet(self, wrong: bool = False) -> None:
        meet(self.group, wrong)


@contextmanager
def told(refuse: Callable[[], None]) -> Iterator[None]:
    """Around what this rank does alone before all meet. Where that fails, with whatever error, the others fail too."""
    try:
        yield
    except Exception:
        refuse()
        raise


def check_tensors(what: str, **given: Any) -> None:
    """Raises TypeError for what is no tensor."""
    for name, one in given.items():
        if not isinstance(one, Tensor):
            raise TypeError(f"{what}: {name} must be a tensor, not {type(one).__name__}")


def meet(group: dist.ProcessGroup, wrong: bool = False) -> None:
    """Returns when all ranks have come: what they have written before is there. wrong: this rank is about to raise, and
    so are all others."""
    word = torch.tensor([group.rank() + 1.0 if wrong else 0.0])
    all_reduce(word, dist.ReduceOp.MAX, group)
    if word and not wrong:
        raise ValueError(f"experts: rank {int(word) - 1} of the group got invalid arguments; its own error says which")
