"""Computes the weight gradients of linear layers and embeddings directly in the unit's gradient buffer, where the core
sums them. Autograd would allocate a gradient that a hook then copies. The operations are those of autograd, so the
results are bit-identical."""
from __future__ import annotations

import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

_owners: Any = WeakTensorKeyDictionary()                # weight: (weak reference to its Manager, parameter number)


class _Product(torch.autograd.Function):
    """A linear layer. backward() writes the weight's gradient into the buffer of parameter `number` of the manager."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, manager: Manager, number: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.place = manager, number
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        manager, number = ctx.place
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        result = None
        if of_weight and _is_accumulated(weight):
            result = manager.write(number, rows.t(), inputs)
        elif of_weight:
            result = rows.t().mm(inputs)
        return (rows.mm(weight).view(x.shape) if of_x else None, result, rows.sum(0) if of_bias else None, None, None)


class _Lookup(torch.autograd.Function):
    """An embedding. backward() writes the weight's gradient into the buffer of parameter `number` of the manager."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int, manager: Manager, number: int) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.place = padding, manager, number
        return torch.embedding(weight, ids, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ids, weight = ctx.saved_tensors
        padding, manager, number = ctx.place
        result = None
        if ctx.needs_input_grad[1] and _is_accumulated(weight):
            result = manager.write_rows(number, ids, gradient, padding)
        elif ctx.needs_input_grad[1]:
            result = sum_rows(gradient, ids, len(weight), padding)
        return None, result, None, None, None


def sum_rows(rows: Tensor, ids: Tensor, count: int, padding: int = -1) -> Tensor:
    """The gradient of an embedding: [count, columns], row i is the sum of the rows whose id is i. padding: an id whose
    rows are left out, or -1."""
    return torch.ops.aten.embedding_dense_backward(rows, ids, count, padding, False)


def _is_accumulated(weight: Tensor) -> bool:
    """True if this backward pass accumulates the weight's gradient and no other hook reads it. False in
    torch.autograd.grad, in backward(inputs=…) without the weight, and with create_graph."""
    others = len(weight._post_accumulate_grad_hooks or ()) > 1
    if torch.is_grad_enabled() or weight._backward_hooks or others:
        return False
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(weight).node)
    except RuntimeError:                                # torch.autograd.grad returns this gradient
        return False


def _owner_of(weight: Tensor) -> tuple[Manager, int] | None:
    """The Manager and number of a weight. None if gradients take another path: torch.compile, torch.func, forward mode,
    or a weight that is not sharded."""
    owner = _owners.get(weight)
    if owner is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return None
    manager, number = owner[0](), owner[1]
    return None if manager is None else (manager, number)


def _multiply(self: nn.Linear, x: Tensor) -> Tensor:
    """The forward of a linear layer."""
    owner = _owner_of(self.weight)
    if owner is None or torch.is_autocast_enabled(x.device.type) or x.dtype != self.weight.dtype:
        return F.linear(x, self.weight, self.bias)
    return _Product.apply(x, self.weight, self.bias, *owner)


def _look_up(self: nn.Embedding, ids: Tensor) -> Tensor:
    """The forward of an embedding."""
    owner = _owner_of(self.weight)
    if owner is None or self.sparse or self.max_norm is not None or self.scale_grad_by_freq:
        return nn.Embedding.forward(self, ids)
    padding = -1 if self.padding_idx is None else self.padding_idx
    return _Lookup.apply(ids, self.weight, padding, *owner)


_FORWARDS: dict[type[nn.Module], Any] = {nn.Linear: _multiply, nn.Embedding: _look_up}
_multiply.__name__ = _look_up.__name__ = "forward"      # under which a method is pickled


def write_directly(manager: Manager, model: nn.Module) -> None:
    """Replaces the forward of the model's linear layers and embeddings whose weights the manager owns."""
    for layer in model.modules():
        forward = _FORWARDS.get(type(layer))
        number = manager.number_of.get(layer.weight) if forward else None
        if number is not None and "forward" not in vars(layer):
            _owners[layer.weight] = (weakref.ref(manager), number)
            layer.forward = MethodType(forward, layer)
