"""One step of a rank's list: its actions in order, on plain modules.

Why no order deadlocks: a send never blocks, and is kept until it has gone. A rank waits only for a message of another
rank whose list is before that point, since lists taken in order come to their ends (`Pipeline.check()`). And receives
are posted in the order of use, which on each boundary is that of the sends (checked, too), so each finds its own.

Gradients of inputs and of weights apart: Qi et al., Zero Bubble Pipeline Parallelism (2023); by the functions of
torch.distributed.pipelining, which catch gradients where paths to weights leave those to the inputs.
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

_AHEAD = 2                              # actions whose messages are asked for while another is at work
_NAMES = {"F": "forward", "B": "backward", "I": "backward of inputs", "W": "backward of weights"}


class Span(NamedTuple):
    """When an action was at work, in seconds since the ranks agreed to begin; what it waited for is before that."""
    action: Action
    begin: float
    end: float


class _Root(torch.autograd.Function):
    """One root for all that a stage has given: so outputs may be of any kind (views, too), and need not be kept. box:
    has their gradients before it is gone back through."""

    @staticmethod
    def forward(context: Any, box: list[Tensor], *outputs: Tensor) -> Tensor:
        context.box = box
        return outputs[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(context: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *context.box


@dataclass
class _Held:
    """Of a microbatch in a stage, from its forward to its last backward. root: None, nothing in it is trained. groups:
    of weights whose gradients are still to come."""
    inputs: Sequence[Tensor]
    outputs: Signature
    root: Tensor | None
    box: list[Tensor]
    groups: list[dict[str, Any]] | None = None


@dataclass
class Share:
    """What a rank has of a pipeline, for all steps. stages, devices: its own, by their numbers."""
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
    """Of each microbatch: arguments of the first stage, targets, and the weight of its loss; empty where they are not
    this rank's."""
    arguments: list[tuple[Tensor, ...]]
    targets: list[Any]
    weights: list[float]


def tensors_of(stage: int, given: Any) -> list[Tensor]:
    """What a stage gives, as the next one is called with it."""
    found = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, (tuple, list)) else []
    other = next((type(part).__name__ for part in found if not isinstance(part, Tensor)), None)
    if not found or other:
        kind = f"a {type(given).__name__}" + (f" with a {other}" if other else "")
        raise ValueError(f"pipeline: stage {stage} returns {kind}; it must return a tensor, or a tuple of tensors")
    return found


class Step:
    """losses, outputs: of the last stage, by microbatch. held: the most activations at a time."""

    def __init__(self, share: Share, actions: Sequence[Action], batch: Batch, training: bool) -> None:
        self._share, self._messages, self._batch, self._training = share, share.messages, batch, training
        self._actions = actions if training else [action for action in actions if action.work == "F"]
        self._held: dict[tuple[int, int], _Held] = {}
        self._handed: dict[tuple[bool, int, int], list[Tensor]] = {}    # to a stage of this rank, forward or not
        self._arrivals: list[Arrival | None] = []                       # of the first actions, whose time is near
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Any] = {}
        self.timeline: list[Span] = []
        self.held = 0

    def run(self) -> None:
        began = time.perf_counter()
        for number, action in enumerate(self._actions):
            self._messages.where = (f"rank {self._share.rank}, stage {action.stage}, {_NAMES[action.work]} of "
                                    f"microbatch {action.microbatch}")
            self._ask(number + _AHEAD)
            values = self._take(action, number)
            begin = time.perf_counter()
            with self._at_work():
                given = self._work(action, values)
            self.timeline.append(Span(action, begin - began, time.perf_counter() - began))
            self._hand_on(action, given)
            self._messages.reap()
        self._messages.where = f"rank {self._share.rank}, end of the step"
        self._messages.reap(all_of_them=True)

    # ---- what an action needs ----
    def _giver(self, action: Action) -> int | None:
        """The stage whose message it needs; None: of no other stage."""
        if action.work == "F":
            return action.stage - 1 if action.stage else None
        return action.stage + 1 if action.work in "BI" and action.stage < self._share.last else None

    def _key(self, stage: int, action: Action) -> tuple[bool, int, int]:
        return self._training, stage, action.microbatch

    def _ask(self, until: int) -> None:
        """Posts what the actions up to this number wait for, in this order. Of a gradient more is known when its
        forward is over."""
        while len(self._arrivals) <= until and len(self._arrivals) < len(self._actions):
            action = self._actions[len(self._arrivals)]
            giver, arrival = self._giver(action), None
            peer = self._share.rank_of[giver] if giver is not None else self._share.rank
            if peer != self._share.rank:
                device, at = self._share.devices[action.stage], (action.stage, action.microbatch)
                if action.work == "F":
                    arrival = self._messages.post_activation(self._key(giver, action), peer, device)
                elif at not in self._held:
                    return
                else:
                    arrival = self._messages.post_gradient(giver, self._held[at].outputs, peer, device)
            self._arrivals.append(arrival)

    def _take(self, action: Action, number: int) -> Sequence[Tensor]:
        giver, arrival = self._giver(action), self._arrivals[number]
        self._arrivals[number] = None
        if giver is None:
            return self._batch.arguments[action.microbatch] if action.work == "F" else ()
        if arrival is None:
            return self._handed.pop((action.work == "F", action.stage, action.microbatch))
        if action.work == "F":
            key, device = self._key(giver, action), self._share.devices[action.stage]
            return self._messages.take_activation(arrival, key, self._share.rank_of[giver], device)
        return self._messages.take_gradient(arrival, giver, self._share.rank_of[giver])

    # ---- work ----
    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """An error of a group that a module uses has more text, any other a note."""
        try:
            with self._messages.told("at work"):
                yield
        except Error:
            raise
        except Exception as error:
            if hasattr(error, "add_note"):              # Python 3.11
                error.add_note(f"pipeline: {self._messages.where}")
            raise

    def _work(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """What it gives to the stage after it, or before it."""
        if action.work == "F":
            return self._forward(action, values)
        at = action.stage, action.microbatch
        held, module = self._held[at], self._share.stages[action.stage]
        if action.work != "I":
            del self._held[at]
        if action.work == "W":
            self._weights(held, module)
            return ()
        held.box[:] = values
        trained = [value for value in held.inputs if value.requires_grad]
        if held.root is not None and action.work == "B":
            held.root.backward()
        elif held.root is not None and trained:
            held.groups = self._inputs(held, module)
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in trained]
        for value in trained:
            value.grad = None
        return gradients

    def _forward(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
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
        loss = self._share.loss_fn(given, self._batch.targets[microbatch])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"a tensor of {loss.numel()} elements" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ValueError(f"pipeline: loss_fn returns {kind}; it must return a tensor with one number")
        self.losses[microbatch] = loss.detach()
        return loss.sum() * self._batch.weights[microbatch] if loss.requires_grad else None

    def _inputs(self, held: _Held, module: nn.Module) -> list[dict[str, Any]]:
        try:
            return stage_backward_input([held.root], None, list(held.inputs), module.parameters())[1]
        except RuntimeError as error:
            raise error.__cause__ or error              # it says less than what it is made of

    def _weights(self, held: _Held, module: nn.Module) -> None:
        """Where inputs have no gradients, as in the first stage, all is left for now. The graph is kept while groups
        that share a part of it are gone through, and ends with them."""
        if held.groups is not None:
            stage_backward_weight(module.parameters(), held.groups, retain_graph=True)
        elif held.root is not None and not any(value.requires_grad for value in held.inputs):
            held.root.backward()

    # ---- what it gives ----
    def _hand_on(self, action: Action, given: Sequence[Tensor]) -> None:
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
