"""Computes the weight gradients of linear layers and embeddings directly in the unit's gradient buffer, where the core
sums them. Autograd would allocate a gradient that a hook then copies. The operations are those of autograd, and in its
order, so the results are bit-identical. One rounding may differ if a weight has three or more uses, of which some are
outside such layers: those are added last."""
from __future__ import annotations

from collections import Counter
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch import Tensor, nn

from torch_tutti.zero._hooks import manager_of

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager


class _Product(torch.autograd.Function):
    """A linear layer. backward() writes the weight's gradient into the buffer that the core has for parameter
    `parameter_number`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, manager: Manager,
                parameter_number: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.owner = manager, parameter_number
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, weight and bias. The gradient of the weight is None if it is in the core's
        buffer. The gradient of an argument that needs none is None."""
        x, weight = ctx.saved_tensors
        manager, parameter_number = ctx.owner
        gradient_rows, x_rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        weight_gradient = None
        if needs_weight and _only_accumulates(manager, parameter_number):
            weight_gradient = manager.write_product(parameter_number, gradient_rows.t(), x_rows)
        elif needs_weight:
            weight_gradient = gradient_rows.t().mm(x_rows)
        return (gradient_rows.mm(weight).view(x.shape) if needs_x else None, weight_gradient,
                gradient_rows.sum(0) if needs_bias else None, None, None)


class _Lookup(torch.autograd.Function):
    """An embedding. backward() writes the weight's gradient into the buffer that the core has for parameter
    `parameter_number`."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int, manager: Manager, parameter_number: int) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.owner = manager, parameter_number
        ctx.padding = padding
        return torch.embedding(weight, ids, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of the weight, or None if it is in the core's buffer or not needed."""
        ids, weight = ctx.saved_tensors
        manager, parameter_number = ctx.owner
        weight_gradient = None
        if ctx.needs_input_grad[1] and _only_accumulates(manager, parameter_number):
            weight_gradient = manager.write_rows(parameter_number, ids, gradient, ctx.padding)
        elif ctx.needs_input_grad[1]:
            weight_gradient = sum_rows(gradient, ids, len(weight), ctx.padding)
        return None, weight_gradient, None, None, None


def sum_rows(rows: Tensor, ids: Tensor, count: int, padding: int = -1) -> Tensor:
    """Returns the gradient of an embedding, [count, columns]: row i is the sum of the rows whose id is i. padding: an
    id whose rows are left out, or -1."""
    return torch.ops.aten.embedding_dense_backward(rows, ids, count, padding, False)


def _only_accumulates(manager: Manager, number: int) -> bool:
    """True if this backward pass only accumulates the gradient of a parameter, and no hook of the program reads it.
    False in torch.autograd.grad, in backward(inputs=…) without the parameter, and with create_graph."""
    # a saved tensor may be another object without the parameter's hooks (activation checkpointing, save_on_cpu)
    weight = manager.managed[number].parameter
    if torch.is_grad_enabled() or weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return False
    try:
        return torch._C._will_engine_execute_node(manager.nodes[number])
    except RuntimeError:                                # torch.autograd.grad returns this gradient
        return False


def _owner_of(weight: nn.Parameter) -> tuple[Manager, int] | None:
    """Returns the Manager of a weight and its number there. None if its gradient must go through autograd: in
    torch.compile, torch.func and forward mode, without gradients, or if the weight is not sharded."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    manager = manager_of(weight)
    if manager is None:
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return None
    return manager, manager.number_of[weight]


def _multiply(self: nn.Linear, x: Tensor) -> Tensor:
    """Replaces the forward of a linear layer. Uses torch's own if the gradient must go through autograd."""
    owner = _owner_of(self.weight)
    if owner is None or torch.is_autocast_enabled(x.device.type) or x.dtype != self.weight.dtype:
        return F.linear(x, self.weight, self.bias)
    return _Product.apply(x, self.weight, self.bias, *owner)


def _look_up(self: nn.Embedding, ids: Tensor) -> Tensor:
    """Replaces the forward of an embedding. Uses torch's own if the gradient must go through autograd."""
    owner = _owner_of(self.weight)
    # with autocast the gradients of a linear layer go through autograd, and those of the same weight are added there
    is_added = owner is not None and owner[1] in owner[0].tied and torch.is_autocast_enabled(self.weight.device.type)
    if owner is None or is_added or self.sparse or self.max_norm is not None or self.scale_grad_by_freq:
        return nn.Embedding.forward(self, ids)
    padding = -1 if self.padding_idx is None else self.padding_idx
    return _Lookup.apply(ids, self.weight, padding, *owner)


_FORWARDS: dict[type[nn.Module], Any] = {nn.Linear: _multiply, nn.Embedding: _look_up}
# pickle finds a method by this name
_multiply.__name__ = _look_up.__name__ = "forward"


def replace_forwards(manager: Manager, model: nn.Module) -> set[int]:
    """Replaces the forward of the model's linear layers and embeddings whose weights the manager owns. Returns the
    numbers of the weights that several of these layers have."""
    layers = [layer for layer in model.modules() if type(layer) in _FORWARDS and layer.weight in manager.number_of]
    for layer in layers:
        if "forward" not in vars(layer):
            layer.forward = MethodType(_FORWARDS[type(layer)], layer)
    uses = Counter(manager.number_of[layer.weight] for layer in layers)
    return {number for number, count in uses.items() if count > 1}
