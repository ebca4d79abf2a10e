"""Runs one training step of a pipeline on one rank: the rank's list of actions, in order, on plain modules.

No order deadlocks. A send never blocks; its tensor is kept until it is sent. `Pipeline.check()` proves that all lists,
run in order, come to their ends, so each awaited message is sent. It also proves that receives are posted in the order
of the sends on each boundary, so each receive gets its own message.

The backward pass may be split into gradients of inputs and of weights (Qi et al., Zero Bubble Pipeline Parallelism,
2023), by functions of torch.distributed.pipelining.
"""
from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from torch_tutti._pipeline import Action
from torch_tutti._pipeline_messages import Arrival, Messages, Signature, signature_of
from torch_tutti.exceptions import Error

_AHEAD = 2                              # receives are posted for so many actions after the running one
_NAMES = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}


class Span(NamedTuple):
    """The time of an action, in seconds since the step began on this rank, without its wait for messages."""
    action: Action
    begin: float
    end: float


class _Root(torch.autograd.Function):
    """One autograd root for all outputs of a stage, so that outputs may be of any kind (also views) and need not be
    kept. box: a list into which the outputs' gradients are put before backward() runs."""

    @staticmethod
    def forward(context: Any, box: list[Tensor], *outputs: Tensor) -> Tensor:
        context.box = box
        return outputs[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(context: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *context.box


@dataclass
class _Held:
    """The state of a microbatch in a stage, from its forward to its last backward. root: None if no output needs a
    gradient. box: of _Root. groups: weights whose gradients are not computed yet, as torch's functions return them."""
    inputs: Sequence[Tensor]
    outputs: Signature
    root: Tensor | None
    box: list[Tensor]
    groups: list[dict[str, Any]] | None = None


@dataclass
class Share:
    """A rank's part of a pipeline, for all steps. rank_of: the rank of each stage. stages, devices: this rank's, by
    stage."""
    rank: int
    rank_of: list[int]
    stages: dict[int, nn.Module]
    devices: dict[int, torch.device]
    loss_fn: Callable[[Any, Any], Tensor] | None
    messages: Messages

    @property
    def last(self) -> int:
        return len(self.rank_of) - 1


class Batch(NamedTuple):
    """For each microbatch the arguments of the first stage, the target, and the weight of its loss. Lists are empty on
    ranks that do not use them."""
    arguments: list[tuple[Tensor, ...]]
    targets: list[Any]
    weights: list[float]


def tensors_of(stage: int, given: Any) -> list[Tensor]:
    """The outputs of a stage as a list of tensors. Raises ValueError if there are other values."""
    found = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, (tuple, list)) else []
    other = next((type(part).__name__ for part in found if not isinstance(part, Tensor)), None)
    if not found or other:
        kind = f"a {type(given).__name__}" + (f" with a {other}" if other else "")
        raise ValueError(f"pipeline: stage {stage} returns {kind}; it must return a tensor, or a tuple of tensors")
    return found


class Step:
    """One step. losses, outputs: of the last stage, by microbatch. timeline: the times of the actions. held: the most
    microbatches whose activations were kept at the same time."""

    def __init__(self, share: Share, actions: Sequence[Action], batch: Batch, training: bool) -> None:
        self._share, self._messages, self._batch, self._training = share, share.messages, batch, training
        self._actions = actions if training else [action for action in actions if action.work == "F"]
        self._held: dict[tuple[int, int], _Held] = {}
        # tensors for a stage of this rank: (is forward, stage, microbatch)
        self._handed: dict[tuple[bool, int, int], list[Tensor]] = {}
        self._arrivals: list[Arrival | None] = []                       # posted receives of the first actions, in order
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Any] = {}
        self.timeline: list[Span] = []
        self.held = 0

    def run(self) -> None:
        began = time.perf_counter()
        for number, action in enumerate(self._actions):
            self._messages.where = (f"rank {self._share.rank}, stage {action.stage}, {_NAMES[action.work]} of "
                                    f"microbatch {action.microbatch}")
            self._post_receives(number + _AHEAD)
            values = self._take(action, number)
            begin = time.perf_counter()
            with self._at_work():
                given = self._work(action, values)
            self.timeline.append(Span(action, begin - began, time.perf_counter() - began))
            self._send_results(action, given)
            self._messages.reap()
        self._messages.where = f"rank {self._share.rank}, end of the step"
        self._messages.reap(all_of_them=True)

    # ---- inputs of an action ----
    def _source_stage(self, action: Action) -> int | None:
        """The stage that sends the inputs of an action; None if it needs none of another stage."""
        if action.work == "F":
            return action.stage - 1 if action.stage else None
        return action.stage + 1 if action.work in "BI" and action.stage < self._share.last else None

    def _key(self, stage: int, action: Action) -> tuple[bool, int, int]:
        return self._training, stage, action.microbatch

    def _post_receives(self, until: int) -> None:
        """Posts the receives of all actions up to this number, in order. Stops at a gradient whose forward has not run
        yet, because its shapes are unknown."""
        while len(self._arrivals) <= until and len(self._arrivals) < len(self._actions):
            action = self._actions[len(self._arrivals)]
            source, arrival = self._source_stage(action), None
            peer = self._share.rank_of[source] if source is not None else self._share.rank
            if peer != self._share.rank:
                device, at = self._share.devices[action.stage], (action.stage, action.microbatch)
                if action.work == "F":
                    arrival = self._messages.post_activation(self._key(source, action), peer, device)
                elif at not in self._held:
                    return
                else:
                    arrival = self._messages.post_gradient(source, self._held[at].outputs, peer, device)
            self._arrivals.append(arrival)

    def _take(self, action: Action, number: int) -> Sequence[Tensor]:
        """Waits for the inputs of an action: activations for a forward, gradients of outputs for a backward."""
        source, arrival = self._source_stage(action), self._arrivals[number]
        self._arrivals[number] = None
        if source is None:
            return self._batch.arguments[action.microbatch] if action.work == "F" else ()
        if arrival is None:
            return self._handed.pop((action.work == "F", action.stage, action.microbatch))
        if action.work == "F":
            key, device = self._key(source, action), self._share.devices[action.stage]
            return self._messages.take_activation(arrival, key, self._share.rank_of[source], device)
        return self._messages.take_gradient(arrival, source, self._share.rank_of[source])

    # ---- work ----
    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Adds the running action to errors: to the text of tutti's errors, as a note to any other."""
        try:
            with self._messages.context("at work"):
                yield
        except Error:
            raise
        except Exception as error:
            if hasattr(error, "add_note"):              # Python 3.11
                error.add_note(f"pipeline: {self._messages.where}")
            raise

    def _work(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs an action. Returns its results for the next stage (forward) or the previous one (backward)."""
        if action.work == "F":
            return self._forward(action, values)
        at = action.stage, action.microbatch
        held, module = self._held[at], self._share.stages[action.stage]
        if action.work != "I":
            del self._held[at]
        if action.work == "W":
            self._backward_weights(held, module)
            return ()
        held.box[:] = values
        trained = [value for value in held.inputs if value.requires_grad]
        if held.root is not None and action.work == "B":
            held.root.backward()
        elif held.root is not None and trained:
            held.groups = self._backward_inputs(held, module)
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in trained]
        for value in trained:
            value.grad = None
        return gradients

    def _forward(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs a stage on its inputs. Returns its outputs; none for the last stage, which computes the loss."""
        given, box, root = self._share.stages[action.stage](*values), [], None
        outputs: list[Tensor] = []
        if action.stage < self._share.last:
            outputs = tensors_of(action.stage, given)
            trained = [value for value in outputs if value.requires_grad]
            root = _Root.apply(box, *trained) if trained else None
        elif self._batch.targets:
            root = self._loss(action.microbatch, given)
        else:
            self.outputs[action.microbatch] = tensors_of(action.stage, given)
        if self._training:
            held = _Held(values, signature_of(outputs), root, box)
            self._held[action.stage, action.microbatch] = held
            self.held = max(self.held, len(self._held))
        return outputs

    def _loss(self, microbatch: int, given: Any) -> Tensor | None:
        """Computes the loss of a microbatch. Returns it times its weight, or None if it needs no gradient."""
        loss = self._share.loss_fn(given, self._batch.targets[microbatch])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"a tensor of {loss.numel()} elements" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ValueError(f"pipeline: loss_fn returns {kind}; it must return a tensor with one number")
        self.losses[microbatch] = loss.detach()
        return loss.sum() * self._batch.weights[microbatch] if loss.requires_grad else None

    def _backward_inputs(self, held: _Held, module: nn.Module) -> list[dict[str, Any]]:
        """Computes the gradients of inputs. Returns the groups of weights for _backward_weights()."""
        try:
            return stage_backward_input([held.root], None, list(held.inputs), module.parameters())[1]
        except RuntimeError as error:
            raise error.__cause__ or error              # the cause has the better message

    def _backward_weights(self, held: _Held, module: nn.Module) -> None:
        """Computes the gradients of weights. If no input needs a gradient, as in the first stage, the whole backward
        pass runs here. The graph is retained because groups share parts of it."""
        if held.groups is not None:
            stage_backward_weight(module.parameters(), held.groups, retain_graph=True)
        elif held.root is not None and not any(value.requires_grad for value in held.inputs):
            held.root.backward()

    # ---- results of an action ----
    def _send_results(self, action: Action, given: Sequence[Tensor]) -> None:
        """Sends the results of an action to the rank of the next stage, or keeps them for a stage of this rank."""
        forward = action.work == "F"
        to = action.stage + (1 if forward else -1)
        if action.work == "W" or not 0 <= to <= self._share.last:
            return
        peer = self._share.rank_of[to]
        if peer != self._share.rank and forward:
            self._messages.send_activation(self._key(action.stage, action), peer, given)
        elif peer != self._share.rank:
            self._messages.send_gradient(action.stage, peer, given)
        else:
            values = [value.detach().requires_grad_(value.requires_grad and forward) for value in given]
            self._handed[forward, to, action.microbatch] = values
