"""Runs a Pipeline on plain modules: has the calls of users, and compares the calls of all ranks.

A step begins with an all-reduce of a few numbers: a rank with invalid arguments reports it before anything is sent, and
all ranks raise the same error. A later failure aborts the group, so that no other rank waits for this one.
"""
from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._calls import group_of, tutti_group_of
from torch_tutti._extension import backend_of
from torch_tutti._pipeline import Pipeline, Timing
from torch_tutti._pipeline_keywords import cut_keywords, divided_tensors
from torch_tutti._pipeline_messages import Messages
from torch_tutti._pipeline_step import Batch, Share, Span, Step
from torch_tutti._pipeline_sums import Totals, add_replicas, exchange, gradients_of_step
from torch_tutti._pipeline_zero import ShardedStages

_UNKNOWN = -(1 << 62)                   # number of rows on a rank that has neither inputs nor targets


def split(layers: nn.Module | Sequence[nn.Module], stages: int) -> list[nn.Sequential]:
    """Divides layers evenly into stages, the first of which may have one layer more; see Pipeline.split."""
    if isinstance(layers, nn.Module) and not isinstance(layers, (nn.Sequential, nn.ModuleList)):
        raise ValueError("pipeline: split takes layers in an nn.Sequential, an nn.ModuleList or a list, not a "
                         f"{type(layers).__name__}")
    named_layers = (list(layers.named_children()) if isinstance(layers, nn.Module) else
                    [(str(number), layer) for number, layer in enumerate(layers)])
    if len(named_layers) < stages:
        raise ValueError(f"pipeline: {len(named_layers)} layers for {stages} stages; each stage needs at least one "
                         "layer")
    layers_of_stage, larger_stages = divmod(len(named_layers), stages)
    cuts = [stage * layers_of_stage + min(stage, larger_stages) for stage in range(stages + 1)]
    return [nn.Sequential(OrderedDict(named_layers[begin:end])) for begin, end in zip(cuts, cuts[1:])]


def _group_of(group: dist.ProcessGroup | None, ranks: int) -> dist.ProcessGroup:
    """Returns the group, or the default group for None. Raises ValueError if it is not tutti's or does not have `ranks`
    ranks."""
    chosen = tutti_group_of("pipeline", group)
    if chosen.size() != ranks:
        raise ValueError(f"pipeline: it has {ranks} ranks, but the group has {chosen.size()}")
    return chosen


def _listed(stages: Any) -> list[Any]:
    """Returns the modules of a list, tuple or ModuleList, or a list of the single module."""
    is_list = isinstance(stages, (nn.ModuleList, list, tuple))
    return list(stages) if is_list else [stages]


def _find_mistake(modules: Sequence[Any], own_stages: list[int], group: dist.ProcessGroup) -> str | None:
    """Returns a text about the first problem of the modules for this rank's stages, or None."""
    if len(modules) != len(own_stages):
        return f"{len(modules)} modules for the stages {', '.join(map(str, own_stages))}; each needs one"
    for stage, module in zip(own_stages, modules):
        if not isinstance(module, nn.Module):
            return f"stage {stage} is a {type(module).__name__}, not a module"
        if isinstance(module, DistributedDataParallel):
            return (f"stage {stage} is a DistributedDataParallel, which would sum gradients in each microbatch; pass "
                    "its module, and average gradients after the step")
        if backend_of(group, _device_of(module)) is None:
            return f"stage {stage} is on {_device_of(module)}, but the group uses another backend than tutti for it"
    return None


def _flat(target: Any) -> list[Any]:
    """Returns the tensors of a target as a list."""
    return list(target) if isinstance(target, (tuple, list)) else [target]


def _cut(target: Any, count: int) -> list[Any]:
    """Divides a target by rows into `count` parts; the first parts may have one row more."""
    if isinstance(target, Tensor):
        return list(target.tensor_split(count))
    return list(zip(*(tensor.tensor_split(count) for tensor in target)))


def _device_of(module: nn.Module) -> torch.device:
    """Returns the device of the module's first parameter or buffer, or the CPU if it has none."""
    return next((tensor.device for tensors in (module.parameters(), module.buffers()) for tensor in tensors),
                torch.device("cpu"))


class Runner:
    """Runs steps of a pipeline; Pipeline.runner makes it. Attributes about the last step: losses: of its microbatches,
    on the rank of the last stage. timeline: this rank's actions with their times. held: the most microbatches in a
    stage whose activations this rank kept at the same time."""

    def __init__(self, pipeline: Pipeline, stages: nn.Module | Sequence[nn.Module],
                 loss_fn: Callable[[Any, Any], Any] | None, group: dist.ProcessGroup | None,
                 replicas: dist.ProcessGroup | None) -> None:
        """Compares the pipelines of all ranks; collective. The parameters are those of Pipeline.runner."""
        self.pipeline, self.group = pipeline, _group_of(group, pipeline.ranks)
        self.replicas = None if replicas is None else group_of("pipeline: replicas", replicas)
        # Whether loss_fn returns (sum, count), which ranks without the last stage learn in the first step; None before.
        self._is_counted: bool | None = None
        pipeline.check()
        rank = dist.get_rank(self.group)
        modules, own_stages = _listed(stages), pipeline.stages_of(rank)
        self._compare(_find_mistake(modules, own_stages, self.group))
        self._actions = pipeline.actions(rank)
        self._share = Share(rank, [pipeline.rank_of(stage) for stage in range(pipeline.stages)],
                            dict(zip(own_stages, modules)),
                            {stage: _device_of(module) for stage, module in zip(own_stages, modules)}, loss_fn,
                            Messages(self.group))
        self.losses: list[Tensor] = []
        self.timeline: list[Span] = []
        self.held = 0

    def _compare(self, mistake: str | None) -> None:
        """Compares the pipelines of all ranks. Collective. All raise ValueError if a rank has a mistake or another
        pipeline. mistake: of this rank, or None."""
        pipeline = self.pipeline
        description = (f"{pipeline.name} of {pipeline.ranks} ranks, stages on each: {pipeline.chunks}, microbatches: "
                       f"{pipeline.microbatches}")
        of_ranks = self._gather_objects((description, mistake))
        for rank, (other_description, other_mistake) in enumerate(of_ranks):
            if other_mistake is not None:
                raise ValueError(f"pipeline: rank {rank} of {description}: {other_mistake}")
            if other_description != of_ranks[0][0]:
                raise ValueError(f"pipeline: rank 0 has {of_ranks[0][0]}; rank {rank} has {other_description}")

    def _gather_objects(self, own: Any) -> list[Any]:
        """Returns the objects of all ranks, in the order of ranks. Collective. own: this rank's object."""
        of_ranks: list[Any] = [None] * self.pipeline.ranks
        dist.all_gather_object(of_ranks, own, group=self.group)
        return of_ranks

    # ---- for users ----
    def step(self, *args: Tensor, target: Any = None, count: float | None = None, **keywords: Any) -> Tensor | None:
        """Runs a forward and a backward pass of a batch. Collective. args: the inputs of the first stage, used on its
        rank; target: of the loss, a tensor or a tuple of tensors, used on the rank of the last stage. Both are divided
        along dimension 0 into microbatches; the first ones may have one row more. count: the count of the batch, if
        loss_fn returns (sum, count) and the program knows it, used on the rank of the last stage; then no gradient
        changes at the end of the step. keywords: keyword arguments of this rank's stages, without gradients, such as
        masks. Tensors in them, also in tuples, lists and dicts, are divided like args, but those with a first dimension
        of 1 or none, and other objects, are given to all microbatches.

        On the rank of the last stage returns the detached loss of the batch; None on others. The loss is the mean over
        microbatches weighted by their rows, or the sum of sums divided by the sum of counts. Gradients are added to
        p.grad, like backward(). For a loss that is a mean over rows, or a sum and a count, they equal those of one
        process with the whole batch. Raises ValueError on all ranks if a rank's arguments are invalid. A later failure
        aborts the group and the replicas' group: a rank whose module or loss_fn fails raises its own error, the others
        AbortedError; if a rank dies, the others raise PeerError."""
        return self._run(args, keywords, target, True, count)

    def eval(self, *args: Tensor, target: Any = None, **keywords: Any) -> Any:
        """Runs a forward pass without gradients. Collective. On the rank of the last stage returns the loss if there is
        a target, else the outputs of all microbatches, concatenated along dimension 0; on other ranks None. Modules
        stay in their mode (train or eval)."""
        return self._run(args, keywords, target, False)

    def timing(self) -> Timing:
        """Returns the times of the last step on all ranks, in seconds, comparable to `Pipeline.time()`. Collective. On
        devices other than CPUs these are times at which work was submitted."""
        of_ranks = self._gather_objects(([span.end for span in self.timeline],
                                         sum(span.end - span.begin for span in self.timeline), self.held))
        ends, busy, held = map(list, zip(*of_ranks))
        return Timing(max((end for of_rank in ends for end in of_rank), default=0.0), ends, busy, held)

    # ---- before anything is sent ----
    def _mistake_in_call(self, args: Sequence[Any], keywords: dict[str, Any], target: Any, training: bool,
                         count: Any) -> str | None:
        """Returns a text about the first problem of this rank's arguments to step() (training) or eval(), or None."""
        share, name = self._share, "step" if training else "eval"
        has_first, has_last = 0 in share.stages, share.last in share.stages
        if has_first and not args and not divided_tensors(keywords):
            return f"{name}() without arguments, but this rank has the first stage"
        if has_last and training and target is None:
            return "step() without a target, but this rank has the last stage"
        if has_last and target is not None and share.loss_fn is None:
            return f"{name}() with a target, but the runner has no loss_fn"
        if has_last and isinstance(target, (tuple, list)) and not target:
            return f"{name}() with a target that contains no tensor"
        if has_last and count is not None and not 0 <= count < math.inf:
            return f"{name}() with a count of {count}; it must be a number of at least 0"
        if has_last and count is not None and self._is_counted is False:
            return f"{name}() with a count, but loss_fn does not return (sum, count)"
        tensors = [*(args if has_first else ()), *(_flat(target) if has_last and target is not None else ())]
        divided = divided_tensors(keywords)
        for tensor in [*tensors, *divided]:
            if not isinstance(tensor, Tensor) or not tensor.dim():
                kind = "a tensor without dimensions" if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
                return f"{name}() with {kind}, but tensors are divided along their first dimension"
            if tensor.requires_grad:
                return f"{name}() with a tensor that requires gradients: they end at the first stage; detach it"
        rows = sorted({len(tensor) for tensor in [*tensors, *divided]})
        if len(rows) > 1:
            hint = "; a keyword argument for all rows needs a first dimension of 1" if divided else ""
            return f"{name}() with tensors of {' and '.join(map(str, rows))} rows{hint}"
        if rows and rows[0] < self.pipeline.microbatches:
            return f"{name}() with {rows[0]} rows for {self.pipeline.microbatches} microbatches; each needs one or more"
        return None

    def _agree(self, mistake: str | None, training: bool, rows: int | None) -> None:
        """Compares the calls of all ranks. Collective. All raise ValueError if a rank has a mistake, if some call
        step() and others eval(), or if the numbers of rows differ. rows: of the batch, None if this rank does not know
        it."""
        # The maximum of negated values is the negated least value.
        bounds = (_UNKNOWN, _UNKNOWN) if rows is None else (rows, -rows)
        numbers = torch.tensor([mistake is not None, training, -training, *bounds])
        self._share.messages.where = f"rank {self._share.rank}, beginning of a step"
        with self._share.messages.context("waits for the other ranks"):
            dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        any_mistake, most_training, minus_least_training, most_rows, minus_least_rows = numbers.tolist()
        if not any_mistake and most_training == -minus_least_training and most_rows in (-minus_least_rows, _UNKNOWN):
            return
        of_ranks = self._gather_objects((mistake, f"{'step' if training else 'eval'}()", rows))
        texts = [f"rank {rank}: {call[0]}" for rank, call in enumerate(of_ranks) if call[0] is not None] or [
            f"rank {rank} calls {call[1]}{f' with {call[2]} rows' if call[2] else ''}"
            for rank, call in enumerate(of_ranks)]
        raise ValueError(f"pipeline: {'; '.join(texts)}")

    # ---- a step ----
    def _run(self, args: Sequence[Any], keywords: dict[str, Any], target: Any, training: bool,
             loss_count: float | None = None) -> Any:
        """Does the work of step() (training) and eval(): compares the calls of all ranks, divides the batch into
        microbatches, and runs the actions of this rank. Aborts the group after a later error."""
        share, count = self._share, self.pipeline.microbatches
        mistake = self._mistake_in_call(args, keywords, target, training, loss_count)
        has_first, has_last = 0 in share.stages, share.last in share.stages and target is not None
        tensors = [*(args if has_first else ()), *(_flat(target) if has_last else ()), *divided_tensors(keywords)]
        rows = len(tensors[0]) if mistake is None and tensors else None
        self._agree(mistake, training, rows)
        arguments = [tensor.tensor_split(count) for tensor in args]
        batch = Batch([tuple(parts[index] for parts in arguments) for index in range(count)] if has_first else [],
                      _cut(target, count) if has_last else [],
                      [(rows // count + (index < rows % count)) / rows for index in range(count)] if rows else [],
                      cut_keywords(keywords, count))
        step = Step(share, self._actions, batch, training)
        try:
            with torch.set_grad_enabled(training):
                if training:
                    self._train(step, loss_count if has_last else None)
                else:
                    step.run()
                return self._outcome(step, batch)
        except BaseException:                           # the other ranks must not wait for this one
            self._abort()
            raise

    def _abort(self) -> None:
        """Aborts the pipeline's group, and that of the replicas, whose other ranks wait for this one at the end of a
        step."""
        self.group.abort()
        if self.replicas is not None:
            with contextlib.suppress(Exception):        # some backends cannot abort
                self.replicas.abort()

    def _train(self, step: Step, loss_count: float | None) -> None:
        """Runs a training step. In the first step, and in later ones if loss_fn returned (sum, count) in the first,
        adds up the counts at the end of the step, and multiplies the step's gradients by the remaining factor."""
        modules, factor = self._share.stages.values(), 1.0
        sharded = ShardedStages(modules)
        if self._is_counted is False:
            with sharded.accumulate():
                step.run()
            if step.sums.sums:
                raise ValueError("pipeline: loss_fn returned a loss in the first step, and (sum, count) in this one")
        else:
            if loss_count is not None:
                step.sums.fix_scale(self._final_scale(loss_count))
            with sharded.accumulate(), gradients_of_step(modules, sharded.parameters) as multiply:
                step.run()
                step.sums.check(loss_count)
                totals = step.totals = self._exchange(step, sharded.is_held)
                if totals.is_counted and not totals.is_final:
                    factor = totals.factor(self._replica_count())
                    multiply(factor)
            self._is_counted = totals.is_counted
        sharded.finish(factor)

    def _exchange(self, step: Step, is_held: bool) -> Totals:
        """Returns the totals of a step that has run. Collective. Raises ValueError on all ranks if the gradients cannot
        change any more. is_held: zero holds gradients of several steps."""
        messages = self._share.messages
        messages.where = f"rank {self._share.rank}, end of the step"
        with messages.context("waits for the counts of all ranks"):
            totals = exchange(step.sums.totals._replace(held=is_held), self.group)
            totals = add_replicas(totals, self.replicas if totals.is_counted else None)
        if self._is_counted and not totals.is_counted:
            raise ValueError("pipeline: loss_fn returned (sum, count) in the first step, and a loss in this one")
        if totals.is_counted and totals.held and not totals.is_final:
            raise ValueError("pipeline: loss_fn returns (sum, count) in a block of no_sync(), where zero adds up the "
                             "gradients of several steps, which cannot change at the end of this step: pass the "
                             "batch's count to step(count=...)")
        return totals

    def _replica_count(self) -> int:
        """Returns the number of replicas whose gradients the program averages, or 1."""
        return 1 if self.replicas is None else dist.get_world_size(self.replicas)

    def _final_scale(self, loss_count: float) -> float:
        """Returns the scale of sums for a count of this batch that is known before the step. Collective over the
        replicas of the last stage."""
        total = torch.tensor([loss_count], dtype=torch.float64)
        if self.replicas is not None:
            with self._share.messages.context("waits for the counts of the other replicas"):
                dist.all_reduce(total, group=self.replicas)
        return self._replica_count() / (total.item() or 1.0)

    def _outcome(self, step: Step, batch: Batch) -> Any:
        """Stores the attributes about the step. Returns the result of step() or eval(): the loss; or without a target
        the outputs; None on ranks without the last stage."""
        self.timeline, self.held = step.timeline, step.held
        self.losses = step.sums.losses or [loss for _, loss in sorted(step.losses.items())]
        if step.sums.sums:
            totals = step.totals or add_replicas(step.sums.totals, self.replicas)
            return self.losses[0].new_tensor(totals.mean)
        if self.losses:
            return torch.stack([loss * weight for loss, weight in zip(self.losses, batch.weights)]).sum()
        outputs = [torch.cat(parts) for parts in zip(*(tensors for _, tensors in sorted(step.outputs.items())))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None
