"""Finds steps that DistributedDataParallel would take with other gradients: there gradients stay in `grad` until
zero_grad(), while zero's step ends them."""
from __future__ import annotations

import warnings

_ADVICE = ("call optimizer.zero_grad() before each backward pass that begins a step. zero's step ends the gradients; "
           "DistributedDataParallel keeps them and ")


class ZeroGradCheck:
    """Follows the calls of step() and zero_grad(). A program that never calls zero_grad() gets one warning: most such
    programs want what zero does. One that calls it, but not between two steps with gradients, gets an error."""

    def __init__(self) -> None:
        self._calls_zero_grad = self._has_warned = False
        # a step has used gradients of this rank since the last zero_grad()
        self._is_due = False

    def record_zero_grad(self) -> None:
        self._calls_zero_grad, self._is_due = True, False

    def begin_step(self, has_gradients: bool) -> bool:
        """Called before a step. has_gradients: this rank has some. Returns True if the step repeats the one before it,
        unless another rank has gradients. Raises RuntimeError if a call of zero_grad() is missing."""
        if not has_gradients:
            return self._is_due
        if self._is_due and self._calls_zero_grad:
            raise RuntimeError("zero: gradients were made after a step without zero_grad() between; " + _ADVICE +
                               "adds the new ones to them")
        if self._is_due and not self._has_warned:
            warnings.warn("zero: the program takes steps and never calls zero_grad(). To silence this, " + _ADVICE +
                          "adds the new ones to them", stacklevel=4)
            self._has_warned = True
        self._is_due = True
        return False

    @staticmethod
    def raise_repeated() -> None:
        """Raises RuntimeError for a step that repeats the one before it, because no rank has new gradients."""
        raise RuntimeError("zero: step() follows a step, and no rank has made gradients or called zero_grad() since; " +
                           "take one step for each backward pass, or " + _ADVICE + "takes the same step again")
