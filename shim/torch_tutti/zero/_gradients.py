"""The tensor in `grad` after a backward pass: the averaged gradient of a parameter, of which each rank keeps a piece.
torch's functions that clip gradients, and norms of single gradients, work on it unchanged."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torch_tutti import exceptions

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

# Operations that change each element of a gradient in place, from numbers alone.
_IN_PLACE = ("mul_", "div_", "clamp_", "clamp_min_", "clamp_max_", "nan_to_num_", "zero_")
# The same on lists of gradients.
_IN_PLACE_LISTS = {f"_foreach_{name}": name for name in _IN_PLACE}
# Divides the gradients of torch.amp.GradScaler by the scale, and looks for infinity and NaN.
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


class DividedGradient(torch.Tensor):
    """The averaged gradient of parameter `number`, with the parameter's shape and dtype, and without memory: each rank
    has a piece of it in the core. Norms and the operations of _IN_PLACE are collective; any other raises RuntimeError.
    gradients: a weak reference to the Gradients."""
    gradients: Any
    number: int

    @staticmethod
    def __new__(cls, shape: torch.Size, dtype: torch.dtype, gradients: Any, number: int) -> DividedGradient:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")
        self.gradients, self.number = gradients, number
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation of torch, of which an argument is a DividedGradient or a list with one."""
        name, keywords = func.overloadpacket.__name__, kwargs or {}
        first, numbers = args[0], args[1:]
        if name == "detach":
            return cls(first.shape, first.dtype, first.gradients, first.number)
        if name == "linalg_vector_norm" and _is_of_all(first, *numbers[1:]) and set(keywords) <= {"dtype"}:
            norm = first._alive(func).norm(first.number, *map(float, numbers[:1]))
            return norm.to(keywords.get("dtype") or first.dtype)
        if name == "_foreach_norm":
            return [torch.linalg.vector_norm(gradient, *numbers, **keywords) for gradient in first]
        if name == _UNSCALE:
            next(gradient for gradient in first if isinstance(gradient, cls))._alive(func).unscale(*args)
            return None
        if name in _IN_PLACE_LISTS:
            for gradient, *own in zip(first, *(each if isinstance(each, (list, tuple)) else [each] * len(first)
                                               for each in numbers)):
                getattr(gradient, _IN_PLACE_LISTS[name])(*own)
            return None
        if name in _IN_PLACE and not any(isinstance(value, cls) or torch.is_tensor(value) and value.numel() > 1
                                         for value in (*numbers, *keywords.values())):
            first._alive(func).check_numbers(name, [*numbers, *keywords.values()])
            first._alive(func).change(first.number, lambda piece: getattr(piece, name)(*numbers, **keywords))
            return first
        raise RuntimeError(_REFUSAL.format(func))

    def _alive(self, func: Any) -> Gradients:
        """Returns the Gradients. Raises RuntimeError if the optimizer does not exist any more."""
        found: Gradients | None = self.gradients()
        if found is None:
            raise RuntimeError(f"zero: {func} of a gradient whose optimizer does not exist any more")
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DividedGradient({tuple(self.shape)}, {self.dtype})"


def _is_of_all(gradient: torch.Tensor, dimensions: Any = None, keeps_dimensions: bool = False) -> bool:
    """True if these arguments of a norm ask for the norm of the whole gradient."""
    return not keeps_dimensions and (not dimensions or len(dimensions) == gradient.dim())


_REFUSAL = ("zero: {} of a gradient that is divided among the ranks. Only norms of whole gradients, and " +
            ", ".join(_IN_PLACE) + " by numbers, work on it; a hook (parameter.register_hook) gets this rank's whole "
            "gradient")


class Gradients:
    """The averaged gradients of a manager's parameters. scale: a factor that the step still multiplies them by."""

    def __init__(self, manager: Manager) -> None:
        self.core, self.group, self.has_ignored = manager.core, manager.group, bool(manager.ignored)
        self.parameters = [entry.parameter for entry in manager.managed]
        self.shown = [DividedGradient(parameter.shape, parameter.dtype, weakref.ref(self), number)
                      for number, parameter in enumerate(self.parameters)]
        self.are_shown = False
        # tensors of one number by which all ranks have changed a gradient last, and their versions at that time
        self.checked: list[tuple[torch.Tensor, int]] = []
        self.reset()

    def reset(self) -> None:
        """Forgets the gradients, after the step or instead of it."""
        self.scale = 1.0
        # this rank's pieces once they are averaged; None for a parameter without a gradient on any rank
        self.pieces: list[torch.Tensor | None] = []
        # {kind of norm: {number of a parameter: norm}}; a change of a gradient deletes its norms
        self.norms: dict[float, dict[int, torch.Tensor]] = {}
        self.checked.clear()

    # ---- grad ----
    def show(self, number: int) -> None:
        """Called when the core has the gradient of a parameter: sets `grad` of that parameter. The first call in a step
        sets `grad` of all parameters, because another rank may have a gradient that is missing on this one."""
        for each in [number] if self.are_shown else range(len(self.parameters)):
            if self.parameters[each].grad is None:
                self.parameters[each].grad = self.shown[each]
        self.are_shown = True

    def make_room(self, number: int) -> None:
        """Removes a shown gradient from `grad`, where autograd stores a new one next."""
        if isinstance(self.parameters[number].grad, DividedGradient):
            self.parameters[number].grad = None

    def hide(self) -> None:
        """Sets `grad` of all parameters to None, and forgets the gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        self.are_shown = False
        self.reset()

    # ---- the averaged gradients ----
    def _settle(self) -> None:
        """Waits until all gradients are averaged. Collective, once in a step."""
        if not self.pieces:
            self.core.settle()
            pieces = [self.core.piece(number) for number in range(len(self.parameters))]
            self.pieces = [piece.gradient if piece.used else None for piece in pieces]

    def check_numbers(self, name: str, numbers: list[Any]) -> None:
        """Raises RuntimeError on all ranks if they change a gradient by different numbers. Does nothing if all
        parameters are replicas, or if the numbers are the tensors of the last call, as in a clip of many gradients.
        Collective otherwise."""
        versions = [(each, each._version) for each in numbers if torch.is_tensor(each)]
        is_known = bool(versions) and len(versions) == len(numbers) == len(self.checked) and all(
            tensor is known and version == old for (tensor, version), (known, old) in zip(versions, self.checked))
        if not self.has_ignored or is_known:
            return
        of_ranks: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(of_ranks, [each.item() if torch.is_tensor(each) else each for each in numbers],
                               self.group)
        if any(repr(other) != repr(of_ranks[0]) for other in of_ranks):
            raise RuntimeError(f"zero: the ranks change an averaged gradient by different numbers, {name} by "
                               f"{of_ranks}; gradients of ignored parameters differ between ranks, so pass only the "
                               "others to torch's functions that clip gradients")
        self.checked[:] = versions

    @torch.no_grad()
    def change(self, number: int, operation: Any) -> None:
        """Calls `operation` with this rank's piece of a gradient, which it changes in place. Collective for the first
        gradient of a step."""
        self._settle()
        if self.scale != 1.0:
            for piece in self.pieces:
                if piece is not None:
                    piece.mul_(self.scale)
            self.scale = 1.0
            self.norms.clear()
        piece = self.pieces[number]
        if piece is not None:
            operation(piece)
        for known in self.norms.values():
            known.pop(number, None)

    @torch.no_grad()
    def unscale(self, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
        """Multiplies gradients by a number in place. Sets found_inf to 1 on all ranks if a gradient is not finite on
        any rank. gradients: may contain ordinary ones, of ignored parameters. Collective."""
        def unscale_each(tensor: torch.Tensor) -> None:
            getattr(torch, _UNSCALE)([tensor], found_inf, inverse_scale)
        self._settle()
        for gradient in gradients:
            if isinstance(gradient, DividedGradient):
                self.change(gradient.number, unscale_each)
            else:
                unscale_each(gradient)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX, self.group)

    def norm(self, number: int, kind: float = 2.0) -> torch.Tensor:
        """Returns a norm of a gradient, float32 or float64, equal on all ranks. kind: the p of the p-norm. Collective
        for the first norm of this kind in a step, and for a gradient that has changed since: then it computes the norms
        of all gradients."""
        if number not in self.norms.get(kind, {}):
            self.norms[kind] = dict(enumerate(self._compute_norms(kind)))
        return self.norms[kind][number] * (abs(self.scale) if kind else 1.0)

    def all_norms(self, kind: float = 2.0) -> list[torch.Tensor]:
        """Returns norm() of each gradient. Collective."""
        return [self.norm(number, kind) for number in range(len(self.parameters))]

    @torch.no_grad()
    def own_part(self, number: int) -> torch.Tensor | None:
        """Returns a copy of this rank's piece of a gradient as the next step uses it, flat; None on all ranks if no
        rank has a gradient. Collective for the first gradient of a step."""
        self._settle()
        piece = self.core.piece(number)
        if not piece.used:
            return None
        return (piece.value.new_empty(0, dtype=self.core.sum_dtypes[number]) if piece.gradient is None
                else piece.gradient * self.scale if self.scale != 1.0 else piece.gradient.clone())

    @torch.no_grad()
    def _compute_norms(self, kind: float) -> torch.Tensor:
        """Returns a norm of each gradient without the scale, float64 if the model has float64 parameters, else float32.
        Collective."""
        self._settle()
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in self.parameters) else torch.float32
        neutral = float("inf") if kind < 0 else 0.0
        own = torch.tensor([neutral if piece is None or not piece.numel() else
                            torch.linalg.vector_norm(piece, kind, dtype=dtype).item() for piece in self.pieces],
                           dtype=dtype)
        if self.core.placement == "whole":
            return own
        of_ranks = torch.empty(dist.get_world_size(self.group), len(own), dtype=dtype)
        try:
            dist.all_gather(list(of_ranks), own, self.group)
        except exceptions.TimeoutError as error:
            raise type(error)(f"zero: norms of gradients are for all ranks of the group: {error}") from None
        return of_ranks.sum(0) if kind == 0 else torch.linalg.vector_norm(of_ranks, kind, dim=0)
