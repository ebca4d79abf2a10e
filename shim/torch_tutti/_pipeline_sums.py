"""Losses that are sums: loss_fn returns (sum, count), and the loss of a batch is the sum of all sums divided by that of
all counts, also those of other replicas.

The counts of a batch are known only after the first backward passes. So backward passes use a provisional scale, a
power of two, and at the end of the step each rank multiplies the gradients of the step by the remaining factor. If the
program gives the count before the step, the scale is final, and no gradient changes at the end.
"""
from __future__ import annotations

import contextlib
import math
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Totals(NamedTuple):
    """The totals of a step, equal on all ranks of the pipeline. is_counted: loss_fn returned (sum, count). loss, count:
    the total of the sums and that of the counts. scale: the factor of the sums in backward passes. is_final: gradients
    with this scale need no further factor. held: on how many ranks zero holds gradients of several steps."""
    is_counted: bool
    loss: float
    count: float
    scale: float
    is_final: bool
    held: int

    @property
    def mean(self) -> float:
        """The loss of the batch; the sum if the count is 0."""
        return self.loss / (self.count or 1.0)

    def factor(self, replicas: int) -> float:
        """Returns the factor of the gradients at the end of the step, after which their average over replicas is the
        gradient of `mean`."""
        return 1.0 if self.is_final else replicas / ((self.count or 1.0) * self.scale)


class Sums:
    """The sums and counts of a step's microbatches, on the rank of the last stage. microbatches: their number."""

    def __init__(self, microbatches: int) -> None:
        # The factor of sums in backward passes. None: the first sum sets a provisional one.
        self.scale: float | None = None
        self._microbatches, self.is_final = microbatches, False
        # By microbatch; `sums` are detached.
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, float] = {}

    def fix_scale(self, scale: float) -> None:
        """Sets the final scale, before the step: the count of the batch is known."""
        self.scale, self.is_final = scale, True

    def check(self, count: float | None) -> None:
        """Raises ValueError if the counts do not sum to the count that the program gave before the step."""
        found = sum(self.counts.values())
        if self.sums and count is not None and not math.isclose(found, count, rel_tol=1e-6):
            raise ValueError(f"pipeline: the counts that loss_fn returned sum to {found:g}, but step() was called with "
                             f"count={count:g}")

    def add(self, microbatch: int, result: tuple[Any, ...]) -> Tensor:
        """Stores (sum, count) of a microbatch. Returns the sum times the scale, for the backward pass. Raises
        ValueError for other results of loss_fn."""
        loss, count = _checked(result)
        self.sums[microbatch], self.counts[microbatch] = loss.detach().sum(), count
        if self.scale is None:
            # Near 1 / (count of the batch), so that gradients of 16-bit types neither overflow nor vanish.
            self.scale = 2.0 ** -round(math.log2(max(count, 1.0) * self._microbatches))
        return loss.sum() * self.scale

    @property
    def losses(self) -> list[Tensor]:
        """Returns the loss of each microbatch: its sum divided by its count, or the sum if the count is 0."""
        return [self.sums[microbatch] / (self.counts[microbatch] or 1.0) for microbatch in sorted(self.sums)]

    @property
    def totals(self) -> Totals:
        """Returns the totals of this pipeline, without other replicas."""
        loss = sum(value.item() for _, value in sorted(self.sums.items()))
        return Totals(bool(self.sums), loss, sum(self.counts.values()), self.scale or 0.0, self.is_final, 0)


def _checked(result: tuple[Any, ...]) -> tuple[Tensor, float]:
    """Returns the sum and the count that loss_fn returned. Raises ValueError if they are something else."""
    loss, count = result if len(result) == 2 else (None, None)
    is_number = isinstance(count, (int, float)) or isinstance(count, Tensor) and count.numel() == 1
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not is_number:
        raise ValueError(f"pipeline: loss_fn returns a tuple ({', '.join(type(value).__name__ for value in result)}); "
                         "a tuple must be (sum, count): a tensor with one number, and a number")
    if not 0 <= float(count) < math.inf:
        raise ValueError(f"pipeline: loss_fn returns a count of {float(count):g}; it must be a number of at least 0")
    return loss, float(count)


def exchange(own: Totals, group: dist.ProcessGroup) -> Totals:
    """Returns the totals of the rank of the last stage; the others have zeros. Collective over the pipeline's group."""
    numbers = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(numbers, group=group)
    is_counted, loss, count, scale, is_final, held = numbers.tolist()
    return Totals(bool(is_counted), loss, count, scale, bool(is_final), int(held))


def add_replicas(own: Totals, replicas: dist.ProcessGroup | None) -> Totals:
    """Returns the totals with loss and count of all replicas. Collective over their group; None: there are none."""
    if replicas is None:
        return own
    numbers = torch.tensor([own.loss, own.count], dtype=torch.float64)
    dist.all_reduce(numbers, group=replicas)
    return own._replace(loss=numbers[0].item(), count=numbers[1].item())


@contextlib.contextmanager
def gradients_of_step(modules: Iterable[nn.Module], others: set[nn.Parameter]) -> Iterator[Callable[[float], None]]:
    """A block in which `grad` has the gradients of this step alone. Returns a function that multiplies them by a
    factor. At the end of the block they are added to the earlier gradients, which keep their memory. others: parameters
    of the modules that are left as they are."""
    parameters = [p for p in dict.fromkeys(p for module in modules for p in module.parameters()) if p not in others]
    earlier = [(p, p.grad) for p in parameters if p.grad is not None]
    for p, _ in earlier:
        p.grad = None

    @torch.no_grad()
    def multiply(factor: float) -> None:
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(factor)
    try:
        yield multiply
    finally:
        for p, gradient in earlier:
            with torch.no_grad():
                if p.grad is not None:
                    gradient.add_(p.grad)
            p.grad = gradient
