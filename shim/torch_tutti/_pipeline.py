"""Schedules of pipelines as data (tutti_pipeline of include/tutti_groups.h): for each rank a list of forwards and
backwards, and their predicted times. tutti's runner or torch's own runtime runs them; only these import torch."""
from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_void_p
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

from torch_tutti._library import _check, _library, check_int32

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.pipelining import PipelineStage

    from torch_tutti._pipeline_runner import Runner

# The letters of torch's CSV files in the order of tutti_work: forward, backward, backward of inputs, of weights.
WORKS = "FBIW"


class _Action(ctypes.Structure):
    """tutti_action of include/tutti_groups.h."""
    _fields_ = [("work", c_int), ("stage", c_int), ("microbatch", c_int)]


class _Cost(ctypes.Structure):
    """tutti_pipeline_cost of include/tutti_groups.h."""
    _fields_ = [("forward", POINTER(c_double)), ("input", POINTER(c_double)), ("weight", POINTER(c_double)),
                ("message", c_double)]


class Action(NamedTuple):
    """One pass of a microbatch through a stage. work: F, forward; B, backward; or its halves: I, backward of inputs; W,
    backward of weights."""
    work: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work}{self.microbatch}"


class Timing(NamedTuple):
    """Times of a pipeline. makespan: of the whole step. ends: the end of each action, by rank. busy: the time at work
    of each rank. held: the most activations (of a microbatch in a stage) that each rank keeps at a time."""
    makespan: float
    ends: list[list[float]]
    busy: list[float]
    held: list[int]

    @property
    def bubbles(self) -> list[float]:
        """The share of the makespan in which each rank waits."""
        return [1 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy]


def schedules() -> list[str]:
    """Returns the names of all schedules."""
    library, names = _library(), []
    library.tutti_pipeline_name.restype = c_char_p
    while (name := library.tutti_pipeline_name(len(names))) is not None:
        names.append(name.decode())
    return names


class Pipeline:
    """The schedule of a pipeline: the rank of each stage, and for each rank its actions in order. Attributes: name,
    ranks, microbatches, chunks (stages of each rank), stages (of all ranks)."""

    def __init__(self, schedule: str, ranks: int, microbatches: int, chunks: int | None = None) -> None:
        """schedule: one of schedules(). chunks: stages of each rank; None: 2 for "interleaved", "zb-v" and
        "dualpipe-v", else 1. Raises ValueError for numbers that the schedule excludes."""
        self.name, self.ranks, self.microbatches = schedule, ranks, microbatches
        self.chunks = chunks if chunks is not None else 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1
        check_int32("pipeline", ranks, microbatches, self.chunks)
        self.stages = ranks * self.chunks
        self._made, self._calls = c_void_p(), _library()
        self._calls.tutti_pipeline_actions.restype = POINTER(_Action)
        _check(self._calls.tutti_pipeline_make(byref(self._made), schedule.encode(), ranks, self.chunks, microbatches))

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            self._calls.tutti_pipeline_destroy(self._made)

    def __reduce__(self) -> Any:
        """Pickles the arguments of the constructor."""
        return Pipeline, (self.name, self.ranks, self.microbatches, self.chunks)

    def rank_of(self, stage: int) -> int:
        """Returns the rank that has a stage. Raises ValueError if the stage does not exist."""
        if not 0 <= stage < self.stages:
            raise ValueError(f"pipeline: stage {stage} does not exist; there are {self.stages}")
        return self._calls.tutti_pipeline_rank(self._made, stage)

    def stages_of(self, rank: int) -> list[int]:
        """Returns the stages of a rank, ascending."""
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    def _actions(self, rank: int) -> tuple[Any, int]:
        """Returns (the library's array of a rank's actions, their number)."""
        count = c_int()
        check_int32("a rank", rank)
        actions = self._calls.tutti_pipeline_actions(self._made, rank, byref(count))
        if not actions:
            raise ValueError(f"pipeline: rank {rank} does not exist; there are {self.ranks}")
        return actions, count.value

    def actions(self, rank: int) -> list[Action]:
        """Returns the actions of a rank, in order. Raises ValueError if the rank does not exist."""
        actions, count = self._actions(rank)
        return [Action(WORKS[action.work], action.stage, action.microbatch) for action in actions[:count]]

    def check(self) -> None:
        """Raises ValueError unless every action occurs once, the lists of all ranks finish without a deadlock, and
        every pair of ranks uses messages in the order in which they are sent."""
        _check(self._calls.tutti_pipeline_check(self._made))

    def time(self, forward: float | Sequence[float] = 1.0, backward: float | Sequence[float] | None = None,
             weight: float | Sequence[float] | None = None, message: float = 0.0) -> Timing:
        """Predicts the times of the pipeline, in the unit of the arguments. Each argument except `message` is one
        number for all stages, or one for each stage. forward: of a forward. backward: of a backward of inputs; None: as
        forward. weight: of a backward of weights; None: as backward. message: of a message between ranks."""
        backward = forward if backward is None else backward
        weight = backward if weight is None else weight
        times = [[time] * self.stages if isinstance(time, (int, float)) else list(map(float, time))
                 for time in (forward, backward, weight)]
        if any(len(time) != self.stages for time in times):
            raise ValueError(f"pipeline: times of {', '.join(str(len(time)) for time in times)} stages; there are "
                             f"{self.stages}")
        arrays = [(c_double * self.stages)(*time) for time in times]
        cost = _Cost(*(ctypes.cast(time, POINTER(c_double)) for time in arrays), message)
        counts = [self._actions(rank)[1] for rank in range(self.ranks)]
        ends, busy = (c_double * sum(counts))(), (c_double * self.ranks)()
        makespan, held = c_double(), (c_int * self.ranks)()
        _check(self._calls.tutti_pipeline_time(self._made, byref(cost), ends, byref(makespan), busy, held))
        if not makespan.value < float("inf"):
            raise ValueError("pipeline: these times are too large to be added up")
        last = list(itertools.accumulate(counts))
        return Timing(makespan.value, [ends[end - count:end] for count, end in zip(counts, last)], list(busy),
                      list(held))

    def csv(self) -> str:
        """Returns the schedule as torch.distributed.pipelining reads it: a line with the actions of each rank."""
        return "".join(",".join(map(str, self.actions(rank))) + "\n" for rank in range(self.ranks))

    def split(self, layers: nn.Module | Sequence[nn.Module]) -> list[nn.Sequential]:
        """Divides layers into all stages, as evenly as possible; the first stages may have one layer more. layers: an
        nn.Sequential, an nn.ModuleList or a list. Layers keep their names. Raises ValueError if there are fewer layers
        than stages."""
        from torch_tutti._pipeline_runner import split
        return split(layers, self.stages)

    def runner(self, stages: nn.Module | Sequence[nn.Module], loss_fn: Callable[[Any, Any], Any] | None = None,
               group: dist.ProcessGroup | None = None, replicas: dist.ProcessGroup | None = None) -> Runner:
        """Returns a runner that runs this pipeline on the modules of this rank by step() and eval(), for all schedules.
        Collective over the group. stages: a module for each stage of stages_of(), in this order, or a single module.

        A module is called with tensors and with the keyword arguments that this rank gives to step() and eval(), and
        returns a tensor or a tuple of tensors; the last one may return any object that loss_fn accepts. Shapes and
        types are found at run time, and may change. loss_fn(output, target) returns one number, the mean over the rows
        of a microbatch; or (sum, count), such as the sum of the losses of all tokens that are not padding, and their
        number. group: of tutti, with the ranks of the pipeline; None: the default group. replicas: the ranks that have
        this rank's stages in other pipelines, with other data; the program averages gradients over them after a step.
        It is used for (sum, count) only, whose counts are summed over replicas, so that the average of gradients is the
        gradient of one process. Raises ValueError, on all ranks, for modules that do not fit and if ranks have
        different pipelines.
        """
        from torch_tutti._pipeline_runner import Runner
        return Runner(self, stages, loss_fn, group, replicas)

    def on_torch(self, stages: Sequence[PipelineStage], **options: Any) -> Any:
        """Returns torch's own runtime for this schedule, with step() and eval(). For zb-v eval() fails, as it does in
        torch's own zb-v. stages: those of this rank (stages_of()). options: of torch's schedule, such as loss_fn."""
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
        ordered = sorted(stages, key=lambda stage: stage.stage_index)
        wrong = [stage for stage in ordered if stage.num_stages != self.stages or stage.group_size != self.ranks]
        if wrong or not ordered or [stage.stage_index for stage in ordered] != self.stages_of(ordered[0].group_rank):
            raise ValueError(f"pipeline: {self.name} of {self.ranks} ranks has {self.stages} stages, this rank all of "
                             f"{self.stages_of(ordered[0].group_rank) if ordered and not wrong else 'its own'}; given "
                             f"are {[stage.stage_index for stage in ordered]} of "
                             f"{[stage.num_stages for stage in ordered]}, of groups of "
                             f"{sorted({stage.group_size for stage in ordered})}")
        schedule = _PipelineScheduleRuntime(ordered, self.microbatches, **options)
        with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
            file.write(self.csv())
        try:
            schedule._load_csv(file.name)
        finally:
            os.unlink(file.name)
        return schedule
