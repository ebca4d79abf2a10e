"""The layout of a batch: which rows travel to which rank. All ranks compute it from the counts of all ranks."""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import all_reduce
from torch_tutti.exceptions import Error
from torch_tutti.experts._pool import abort_host


@dataclass
class Layout:
    """The layout of one batch, on one rank. All its tensors are int64 on the CPU."""
    group: dist.ProcessGroup
    rank: int
    chosen: Tensor                          # [tokens, choices]: expert numbers, or -1
    placed: Tensor                          # [tokens, choices]: position among this rank's rows for the expert, or -1
    by_rank: Tensor                         # [ranks, experts]: rows that each rank sends to each expert
    first: Tensor                           # [ranks, experts]: the row of the owner's array where these rows begin
    rows: int                               # length of this rank's array
    padded: int                             # rows reserved for each rank and expert, or 0
    columns: int
    dtype: torch.dtype
    device: torch.device

    @property
    def compute_dtype(self) -> torch.dtype:
        """Returns the type of weights and of sums of rows: float64 for rows of float64, else float32."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def mine(self) -> Tensor:
        """Returns how many rows each rank sends to each expert of this rank, [ranks, experts of this rank]."""
        return self.own_columns(self.by_rank)

    def own_columns(self, all_experts: Tensor) -> Tensor:
        """Returns the columns of this rank's experts in a tensor [ranks, experts]."""
        experts_per_rank = all_experts.shape[1] // len(all_experts)
        return all_experts[:, self.rank * experts_per_rank:(self.rank + 1) * experts_per_rank]

    def clear_padding(self, array: Tensor) -> None:
        """Sets the rows of this rank's array that no rank has sent to zero. Does nothing if the array is not padded."""
        if not self.padded:
            return
        parts = array.view(self.mine.shape[1], len(self.by_rank), self.padded, self.columns)
        for rank, counts in enumerate(self.mine.tolist()):
            for expert, count in enumerate(counts):
                parts[expert, rank, count:].zero_()

    def in_step(self, step: str) -> ContextManager[None]:
        """Calls in_step() for this rank."""
        return in_step(step, self.rank, self.group)


@contextmanager
def fail_all_on_error(fail_others: Callable[[], None]) -> Iterator[None]:
    """A context for work before a barrier. If the work raises an error, calls fail_others() and raises the error."""
    try:
        yield
    except Exception:
        fail_others()
        raise


@contextmanager
def abort_on_error(abort: Callable[[], None]) -> Iterator[None]:
    """A context for work for which other ranks wait without a barrier. If it raises an error, calls abort() and raises
    the error."""
    try:
        yield
    except BaseException:
        abort()
        raise


@contextmanager
def in_step(step: str, rank: int, group: dist.ProcessGroup) -> Iterator[None]:
    """A context in which a rank waits for the others. Errors of tutti get the step in their text, and are errors on all
    ranks of this host. step: the call, or a backward pass."""
    try:
        yield
    except Error as error:
        abort_host(group)
        raise type(error)(f"experts: rank {rank} of the group waits in {step}, which another rank has not reached; an "
                          f"error there before this step may be the cause: {error}") from error


def check_tensors(call: str, **given: Any) -> None:
    """Raises TypeError if one of the named arguments is not a tensor. call: the name of the function, for the error."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{call}: {name} must be a tensor, not {type(value).__name__}")


def barrier(group: dist.ProcessGroup, failed: bool = False) -> None:
    """Waits for all ranks of the group. Writes to shared memory before it are visible to all ranks after it. failed:
    this rank is about to raise its own error; all other ranks raise ValueError with its number."""
    # 0: none; else the failed rank plus 1
    failed_rank = torch.tensor([group.rank() + 1.0 if failed else 0.0])
    all_reduce(failed_rank, dist.ReduceOp.MAX, group)
    if failed_rank and not failed:
        raise ValueError(f"experts: rank {int(failed_rank) - 1} of the group got invalid arguments; its own error "
                         "describes them")
