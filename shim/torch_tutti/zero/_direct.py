"""Linear layers whose weight's gradient is computed where it is summed: the matrix product writes into the unit's
buffer, where autograd would allocate a gradient that a hook then copies. The products are autograd's own, so are the
bits."""
from __future__ import annotations

import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager

_owners: Any = WeakTensorKeyDictionary()                # of weights: whose, and by which number


class _Product(torch.autograd.Function):
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


def _is_accumulated(weight: Tensor) -> bool:
    """Whether this pass brings the weight its gradient: not torch.autograd.grad, nor backward(inputs=…) without it, nor
    a pass whose own graph is wanted."""
    if torch.is_grad_enabled() or weight._backward_hooks:
        return False
    try:
        return torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(weight).node)
    except RuntimeError:                                # it is asked for
        return False


def _forward(self: nn.Linear, x: Tensor) -> Tensor:
    """Ordinary wherever gradients go another way: compiled, in autocast, with another weight in this one's place."""
    owner = _owners.get(self.weight)
    if (owner is None or owner[0]() is None or not torch.is_grad_enabled() or torch.compiler.is_compiling()
            or torch.is_autocast_enabled(x.device.type) or x.dtype != self.weight.dtype):
        return F.linear(x, self.weight, self.bias)
    manager, number = owner[0](), owner[1]
    return _Product.apply(x, self.weight, self.bias, manager, number)


_forward.__name__ = "forward"                           # under which a method is pickled


def write_directly(manager: Manager, model: nn.Module) -> None:
    for layer in model.modules():
        number = manager.number_of.get(layer.weight) if type(layer) is nn.Linear else None
        if number is not None and "forward" not in vars(layer):
            _owners[layer.weight] = (weakref.ref(manager), number)
            layer.forward = MethodType(_forward, layer)
