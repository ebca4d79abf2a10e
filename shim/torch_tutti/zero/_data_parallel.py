"""Stage 0 without an optimizer: the ranks average the gradients of a model while the backward pass runs, and leave them
in `grad`."""
from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from typing import Any, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from torch_tutti.zero._averages import (Average, broadcast_values, check_same_tensors, divide_into_buckets,
                                        finish_averages, start_average)
from torch_tutti.zero._reduce_type import sums_in_float32

# {model: the GradientAverages of its parameters}
_averages_of: weakref.WeakKeyDictionary[nn.Module, GradientAverages] = weakref.WeakKeyDictionary()


def average_model(model: nn.Module, group: dist.ProcessGroup, ignored: set[torch.Tensor], ahead: bool,
                  reduce_dtype: torch.dtype | None, *unsupported: Any) -> nn.Module:
    """Makes each backward pass of the model average the gradients over the ranks of a group of any backend. Returns the
    model. ignored: parameters and buffers that each rank keeps for itself. ahead: an option of zero.shard without an
    effect here, so True gives a warning. reduce_dtype: the type of sums, as in zero.shard. unsupported: options of
    zero.shard, which must be None. Collective: all ranks get rank 0's other parameters and buffers."""
    if any(option is not None for option in unsupported):
        raise NotImplementedError("zero.shard: stage 0 without an optimizer has no units, precision and init; pass the "
                                  "optimizer")
    if ahead:
        warnings.warn("zero.shard: ahead=True has no effect without an optimizer in zero.shard", stacklevel=3)
    if model in _averages_of:
        raise ValueError("zero.shard: the model is already sharded; a model can be sharded once")
    tensors = {name: tensor for name, tensor in (*model.named_parameters(), *model.named_buffers())
               if tensor not in ignored}
    is_wide = sums_in_float32(reduce_dtype, ((name, parameter.dtype) for name, parameter in model.named_parameters()
                                             if parameter.requires_grad and parameter not in ignored))
    check_same_tensors("zero.shard", tensors, group)
    broadcast_values([list(tensors.values())], group)
    _averages_of[model] = GradientAverages(model, group, ignored, is_wide)
    return model


def averages_of_model(model: nn.Module) -> GradientAverages | None:
    """Returns what averages the gradients of a model, or None."""
    return _averages_of.get(model)


class GradientAverages:
    """Averages the gradients of a model's trained parameters. A bucket is sent as soon as the backward pass has
    accumulated all its gradients, in the same order on all ranks; the rest at the end of the pass."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, ignored: set[torch.Tensor], is_wide: bool) -> None:
        """Installs the hooks of the parameters that are not ignored. is_wide: gradients of 16 bits are summed in
        float32."""
        self.sum_dtype = torch.float32 if is_wide else None
        self.group, self.ignored, self.is_averaging = group, ignored, True
        self.model = weakref.ref(model)
        trained = [parameter for parameter in model.parameters()
                   if parameter.requires_grad and parameter not in ignored]
        if not trained:
            raise ValueError("zero.shard: the model has no parameter with requires_grad")
        # backward passes compute gradients about in this order
        self.buckets = divide_into_buckets(reversed(trained))
        self.bucket_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}
        self.running_pass = -1                          # the number of the backward pass that self.started belongs to
        self.started: list[Average] = []
        self.missing: list[int] = []                    # for each bucket, how many gradients it waits for
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(functools.partial(_on_gradient, weakref.ref(self)))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this context gradients stay on their rank."""
        was_averaging, self.is_averaging = self.is_averaging, False
        try:
            yield
        finally:
            self.is_averaging = was_averaging

    def whole(self) -> contextlib.nullcontext[None]:
        """Returns a context that does nothing: every rank has all parameters."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def edit(self) -> Iterator[None]:
        """In this context rank 0 may change parameters. At its end all ranks get rank 0's values of all parameters that
        are not ignored. Collective."""
        try:
            yield
        finally:                        # the other ranks wait for this call
            model = self.model()
            assert model is not None
            broadcast_values([[p for p in model.parameters() if p not in self.ignored]], self.group)

    def take_gradient(self, parameter: torch.Tensor) -> None:
        """Starts the averages of the buckets that this gradient completes."""
        if not self.is_averaging or parameter not in self.bucket_of:
            return
        # self.started may have averages of an earlier pass that an error ended
        if self.running_pass != torch._C._current_graph_task_id():
            self.running_pass, self.started = torch._C._current_graph_task_id(), []
            self.missing = [len(bucket) for bucket in self.buckets]
            Variable._execution_engine.queue_callback(self.finish_pass)
        self.missing[self.bucket_of[parameter]] -= 1
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] <= 0:
            self.started.append(start_average(self.buckets[len(self.started)], self.group, self.sum_dtype))

    def finish_pass(self) -> None:
        """Called at the end of a backward pass: averages what is left, and writes all averages to `grad`."""
        self.running_pass = -1
        started, self.started = self.started, []
        started += [start_average(bucket, self.group, self.sum_dtype) for bucket in self.buckets[len(started):]]
        finish_averages(started, self.group)
        model = self.model()
        for name, parameter in model.named_parameters() if model is not None else ():
            if (parameter.grad is not None and parameter.numel() and parameter not in self.bucket_of
                    and parameter not in self.ignored):
                raise RuntimeError(f"zero: parameter {name} was not trained when the model was sharded, so its "
                                   "gradient is not averaged; set requires_grad before zero.shard")


def _on_gradient(averages: Any, parameter: torch.Tensor) -> None:
    """A hook that autograd calls when it has accumulated a gradient. averages: a weak reference to
    GradientAverages."""
    if (found := averages()) is not None:
        found.take_gradient(parameter)
