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
from torch_tutti._pipeline_messages import Messages, PostedReceives, Signature, signature_of
from torch_tutti._pipeline_sums import Sums, Totals
from torch_tutti._pipeline_zero import make_room
from torch_tutti.exceptions import Error

_AHEAD = 2                              # actions after the running one whose receives are posted
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
        """Returns a scalar that depends on all outputs for autograd."""
        context.box = box
        return outputs[0].new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(context: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients in the box as those of the outputs."""
        return None, *context.box


@dataclass
class _MicrobatchState:
    """The state of a microbatch in a stage, from its forward to its last backward. outputs: their signature. root: the
    root for backward(), None if no output needs a gradient. box: receives the outputs' gradients before backward() (see
    _Root). groups: the weights that a backward of inputs has left for _backward_weights(), or None."""
    inputs: Sequence[Tensor]
    outputs: Signature
    root: Tensor | None
    box: list[Tensor]
    groups: list[dict[str, Any]] | None = None


@dataclass
class Share:
    """A rank's part of a pipeline, for all steps. rank_of: the rank of each stage. stages, devices: modules and devices
    of this rank's stages, by stage."""
    rank: int
    rank_of: list[int]
    stages: dict[int, nn.Module]
    devices: dict[int, torch.device]
    loss_fn: Callable[[Any, Any], Any] | None
    messages: Messages

    @property
    def last(self) -> int:
        """The last stage of the pipeline."""
        return len(self.rank_of) - 1


class Batch(NamedTuple):
    """For each microbatch the arguments of the first stage, the target, the weight of its loss, and the keyword
    arguments of all stages of this rank. Lists are empty on ranks that do not use them, but not `keywords`."""
    arguments: list[tuple[Tensor, ...]]
    targets: list[Any]
    weights: list[float]
    keywords: list[dict[str, Any]]


def tensors_of(stage: int, output: Any) -> list[Tensor]:
    """Returns the outputs of a stage as a list of tensors. output: the object that its module has returned. Raises
    ValueError if it contains other values."""
    tensors = [output] if isinstance(output, Tensor) else list(output) if isinstance(output, (tuple, list)) else []
    wrong_type = next((type(tensor).__name__ for tensor in tensors if not isinstance(tensor, Tensor)), None)
    if not tensors or wrong_type:
        kind = f"a {type(output).__name__}" + (f" with a {wrong_type}" if wrong_type else "")
        raise ValueError(f"pipeline: stage {stage} returns {kind}; it must return a tensor, or a tuple of tensors")
    return tensors


class Step:
    """One step on this rank. losses, outputs: of the last stage, by microbatch. sums: its losses if they are sums;
    totals: their totals on all ranks. timeline: the times of the actions. held: the most microbatches whose activations
    were kept at the same time."""

    def __init__(self, share: Share, actions: Sequence[Action], batch: Batch, training: bool) -> None:
        """actions: of this rank, in order; without training only the forwards run."""
        self._share, self._messages, self._batch, self._training = share, share.messages, batch, training
        self._actions = actions if training else [action for action in actions if action.work == "F"]
        # By (stage, microbatch).
        self._states: dict[tuple[int, int], _MicrobatchState] = {}
        # Results for a stage of this rank, by (is forward, stage that needs them, microbatch).
        self._kept_results: dict[tuple[bool, int, int], list[Tensor]] = {}
        # The posted receives of the first actions, in order. None: an action without messages, or received already.
        self._posted: list[PostedReceives | None] = []
        self.losses: dict[int, Tensor] = {}
        self.sums = Sums(len(batch.targets))
        self.totals: Totals | None = None
        self.outputs: dict[int, Any] = {}
        self.timeline: list[Span] = []
        self.held = 0

    def run(self) -> None:
        """Runs all actions of this rank, in order, and waits until its messages are sent."""
        step_begin = time.perf_counter()
        for number, action in enumerate(self._actions):
            self._messages.where = (f"rank {self._share.rank}, stage {action.stage}, {_NAMES[action.work]} of "
                                    f"microbatch {action.microbatch}")
            self._post_receives(number + _AHEAD)
            values = self._take(action, number)
            begin = time.perf_counter()
            with self._at_work():
                results = self._run_action(action, values)
            self.timeline.append(Span(action, begin - step_begin, time.perf_counter() - step_begin))
            self._send_results(action, results)
            self._messages.reap()
        self._messages.where = f"rank {self._share.rank}, end of the step"
        self._messages.reap(waits_for_all=True)

    # ---- inputs of an action ----
    def _source_stage(self, action: Action) -> int | None:
        """Returns the stage that sends the inputs of an action; None if the action needs none of another stage."""
        if action.work == "F":
            return action.stage - 1 if action.stage else None
        return action.stage + 1 if action.work in "BI" and action.stage < self._share.last else None

    def _key(self, stage: int, action: Action) -> tuple[bool, int, int]:
        """Returns the key of an activation for Messages: `stage` sends it, for the microbatch of the action."""
        return self._training, stage, action.microbatch

    def _post_receives(self, last_number: int) -> None:
        """Posts the receives of all actions up to the one with this number, in order. Stops at a gradient whose forward
        has not run yet, because its shapes are unknown."""
        while len(self._posted) <= last_number and len(self._posted) < len(self._actions):
            action = self._actions[len(self._posted)]
            source, posted = self._source_stage(action), None
            peer = self._share.rank_of[source] if source is not None else self._share.rank
            if peer != self._share.rank:
                device, stage_and_microbatch = self._share.devices[action.stage], (action.stage, action.microbatch)
                if action.work == "F":
                    posted = self._messages.post_activation(self._key(source, action), peer, device)
                elif stage_and_microbatch not in self._states:
                    return
                else:
                    signature = self._states[stage_and_microbatch].outputs
                    posted = self._messages.post_gradient(source, signature, peer, device)
            self._posted.append(posted)

    def _take(self, action: Action, number: int) -> Sequence[Tensor]:
        """Waits for the inputs of an action and returns them: activations for a forward, gradients of outputs for a
        backward. number: of the action in the list."""
        source, posted = self._source_stage(action), self._posted[number]
        self._posted[number] = None
        if source is None:
            return self._batch.arguments[action.microbatch] if action.work == "F" else ()
        if posted is None:
            return self._kept_results.pop((action.work == "F", action.stage, action.microbatch))
        if action.work == "F":
            key, device = self._key(source, action), self._share.devices[action.stage]
            return self._messages.take_activation(posted, key, self._share.rank_of[source], device)
        return self._messages.take_gradient(posted, source, self._share.rank_of[source])

    # ---- work ----
    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """A block whose errors get the running action: tutti's in their text, others as a note."""
        try:
            with self._messages.context("at work"):
                yield
        except Error:
            raise
        except Exception as error:
            if hasattr(error, "add_note"):              # Python 3.11
                error.add_note(f"pipeline: {self._messages.where}")
            raise

    def _run_action(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs an action on its inputs. Returns its results for the next stage (forward) or the previous one
        (backward)."""
        if action.work == "F":
            return self._forward(action, values)
        stage_and_microbatch = action.stage, action.microbatch
        state, module = self._states[stage_and_microbatch], self._share.stages[action.stage]
        if action.work != "I":
            del self._states[stage_and_microbatch]
        if action.work == "W":
            self._backward_weights(state, module)
            return ()
        state.box[:] = values
        trained = [value for value in state.inputs if value.requires_grad]
        if state.root is not None and action.work == "B":
            state.root.backward()
        elif state.root is not None and trained:
            state.groups = self._backward_inputs(state, module)
        gradients = [torch.zeros_like(value) if value.grad is None else value.grad for value in trained]
        for value in trained:
            value.grad = None
        return gradients

    def _forward(self, action: Action, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Runs a stage on its inputs. Returns its outputs; an empty list for the last stage, which computes the loss or
        stores its outputs."""
        output = self._share.stages[action.stage](*values, **self._batch.keywords[action.microbatch])
        box: list[Tensor] = []
        root: Tensor | None = None
        outputs: list[Tensor] = []
        if action.stage < self._share.last:
            outputs = tensors_of(action.stage, output)
            trained = [value for value in outputs if value.requires_grad]
            root = _Root.apply(box, *trained) if trained else None
        elif self._batch.targets:
            root = self._loss(action.microbatch, output)
        else:
            self.outputs[action.microbatch] = tensors_of(action.stage, output)
        if self._training:
            state = _MicrobatchState(values, signature_of(outputs), root, box)
            self._states[action.stage, action.microbatch] = state
            self.held = max(self.held, len(self._states))
        return outputs

    def _loss(self, microbatch: int, output: Any) -> Tensor | None:
        """Computes and stores the loss of a microbatch. Returns the loss times its weight or scale, or None if it needs
        no gradient. output: of the last stage."""
        loss = self._share.loss_fn(output, self._batch.targets[microbatch])
        is_sum = isinstance(loss, tuple)
        if self.losses if is_sum else self.sums.sums:
            raise ValueError("pipeline: loss_fn returns (sum, count) for some microbatches and a loss for others")
        if self.sums.is_final and not is_sum:
            raise ValueError("pipeline: step() was called with a count, but loss_fn does not return (sum, count)")
        if is_sum:
            scaled = self.sums.add(microbatch, loss)
            return scaled if scaled.requires_grad else None
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"a tensor of {loss.numel()} elements" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ValueError(f"pipeline: loss_fn returns {kind}; it must return a tensor with one number")
        self.losses[microbatch] = loss.detach()
        return loss.sum() * self._batch.weights[microbatch] if loss.requires_grad else None

    def _backward_inputs(self, state: _MicrobatchState, module: nn.Module) -> list[dict[str, Any]]:
        """Computes the gradients of inputs. Returns torch's groups of weights, which _backward_weights() needs."""
        try:
            return stage_backward_input([state.root], None, list(state.inputs), module.parameters())[1]
        except RuntimeError as error:
            raise error.__cause__ or error              # the cause has the better message

    def _backward_weights(self, state: _MicrobatchState, module: nn.Module) -> None:
        """Computes the gradients of weights. If no input needs a gradient, as in the first stage, the whole backward
        pass runs here. The graph is retained because groups share parts of it."""
        make_room(module.parameters())
        if state.groups is not None:
            stage_backward_weight(module.parameters(), state.groups, retain_graph=True)
        elif state.root is not None and not any(value.requires_grad for value in state.inputs):
            state.root.backward()

    # ---- results of an action ----
    def _send_results(self, action: Action, results: Sequence[Tensor]) -> None:
        """Sends the results of an action to the rank of the stage that needs them, or keeps them if this rank has that
        stage."""
        is_forward = action.work == "F"
        next_stage = action.stage + (1 if is_forward else -1)
        if action.work == "W" or not 0 <= next_stage <= self._share.last:
            return
        peer = self._share.rank_of[next_stage]
        if peer != self._share.rank and is_forward:
            self._messages.send_activation(self._key(action.stage, action), peer, results)
        elif peer != self._share.rank:
            self._messages.send_gradient(action.stage, peer, results)
        else:
            values = [value.detach().requires_grad_(value.requires_grad and is_forward) for value in results]
            self._kept_results[is_forward, next_stage, action.microbatch] = values
