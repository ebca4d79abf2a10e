"""Lets ranks train together if some have fewer batches than others."""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator

import torch.distributed as dist

if TYPE_CHECKING:
    from torch_tutti.zero._optimizer import ZeroOptimizer


class UnevenData:
    """Lets the ranks announce their collective calls in a block of ZeroOptimizer.join(). A rank that has no batch any
    more repeats the calls of the others, with their options and without gradients."""

    def __init__(self, optimizer: ZeroOptimizer, divide_by_initial_world_size: bool) -> None:
        self._optimizer, self._group = optimizer, optimizer._manager.group
        self._divides_by_all = divide_by_initial_world_size
        self._is_scaled = False         # in this step the gradients are already scaled to the ranks with batches
        self._calls = 0                 # announced by this rank

    def announce(self, call: str, *arguments: Any) -> None:
        """Called on a rank with a batch, before a collective call. Raises RuntimeError if other ranks with a batch make
        another one. Collective."""
        self._calls += 1
        self._scale(call, sum(bool(other[0]) for other in self._gather(call, arguments)))

    def _gather(self, call: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """Returns what each rank announces: (call, its arguments, options of the parameter groups, number of calls that
        the rank has announced). call: "" on a rank that has no batch any more."""
        options = [{name: value for name, value in group.items() if name != "params"}
                   for group in self._optimizer.param_groups]
        of_ranks: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(of_ranks, (call, arguments, options, self._calls), self._group)
        calls = {rank: other[0] for rank, other in enumerate(of_ranks) if other[0]}
        if len(set(calls.values())) > 1:
            raise RuntimeError("zero: in a block of optimizer.join() the ranks make different calls: " +
                               ", ".join(f"rank {rank} {other}" for rank, other in calls.items()))
        return of_ranks

    def _scale(self, call: str, active: int) -> None:
        """With divide_by_initial_world_size=False divides the gradients of this step by `active`, the number of ranks
        with a batch, instead of the number of all ranks. Scales each step only once."""
        if not self._divides_by_all and not self._is_scaled:
            self._optimizer._gradients.scale *= dist.get_world_size(self._group) / active
        self._is_scaled = call != "step"

    def repeat_others(self) -> None:
        """Called on a rank that has no batch any more. Repeats the calls of the others until none has a batch. Then all
        ranks have the options of a rank that had the last batch."""
        while True:
            of_ranks = self._gather("")
            # a rank with the most announced calls: if any rank still has a batch, this one does
            call, arguments, options, _ = max(of_ranks, key=lambda other: other[3])
            for group, others in zip(self._optimizer.param_groups, options):
                group.update(others)
            if not call:
                return
            self._scale(call, sum(bool(other[0]) for other in of_ranks))
            getattr(self._optimizer, call)(*arguments)


@contextlib.contextmanager
def join(optimizer: ZeroOptimizer, divide_by_initial_world_size: bool) -> Iterator[None]:
    """Does what ZeroOptimizer.join() documents."""
    if optimizer._core.placement == "sharded":
        raise NotImplementedError("zero: optimizer.join() with sharded parameters, which all ranks must use together; "
                                  "give ranks without a batch a batch whose loss counts 0")
    if optimizer.uneven is not None:
        raise RuntimeError("zero: optimizer.join() inside a block of itself")
    optimizer._manager.await_all("optimizer.join()")
    optimizer.uneven = data = UnevenData(optimizer, divide_by_initial_world_size)
    try:
        yield
    finally:
        optimizer.uneven = None
    data.repeat_others()
