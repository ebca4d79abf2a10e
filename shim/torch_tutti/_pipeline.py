"""Schedules of pipelines as data, by c_api's tutti_pipeline: for each rank a list of forwards and backwards; what they
would take; and what runs them: our runner, and torch's own runtime. torch is imported by what runs only."""
from __future__ import annotations

import ctypes
import os
import tempfile
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_void_p
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Sequence

from torch_tutti._library import _check, _library, fits

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.pipelining import PipelineStage

    from torch_tutti._pipeline_runner import Runner

WORKS = "FBIW"                          # as torch's CSV has them: forward, backward, of inputs, of weights


class _Action(ctypes.Structure):
    _fields_ = [("work", c_int), ("stage", c_int), ("microbatch", c_int)]


class _Cost(ctypes.Structure):
    _fields_ = [("forward", POINTER(c_double)), ("input", POINTER(c_double)), ("weight", POINTER(c_double)),
                ("message", c_double)]


class Action(NamedTuple):
    """work: F, forward; B, backward; or its halves I, of inputs, and W, of weights."""
    work: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work}{self.microbatch}"


class Timing(NamedTuple):
    """ends: of each rank's actions. busy, held: of each rank, time at work, and the most activations at a time."""
    makespan: float
    ends: list[list[float]]
    busy: list[float]
    held: list[int]

    @property
    def bubbles(self) -> list[float]:
        """Of each rank, the share of the time in which it waits."""
        return [1 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy]


def schedules() -> list[str]:
    library, found = _library(), []
    library.tutti_pipeline_name.restype = c_char_p
    while (name := library.tutti_pipeline_name(len(found))) is not None:
        found.append(name.decode())
    return found


class Pipeline:
    """Which rank works on which stage and microbatch, in which order."""

    def __init__(self, schedule: str, ranks: int, microbatches: int, chunks: int | None = None) -> None:
        """schedule: one of schedules(). chunks: stages of each rank; None, as many as the schedule has, 2 where it may
        have any. Raises ValueError for what a schedule cannot have."""
        self.name, self.ranks, self.microbatches = schedule, ranks, microbatches
        self.chunks = chunks if chunks is not None else 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1
        fits("pipeline", ranks, microbatches, self.chunks)
        self.stages = ranks * self.chunks
        self._made, self._calls = c_void_p(), _library()
        self._calls.tutti_pipeline_actions.restype = POINTER(_Action)
        _check(self._calls.tutti_pipeline_make(byref(self._made), schedule.encode(), ranks, self.chunks, microbatches))

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            self._calls.tutti_pipeline_destroy(self._made)

    def __reduce__(self) -> Any:
        return Pipeline, (self.name, self.ranks, self.microbatches, self.chunks)

    def rank_of(self, stage: int) -> int:
        if not 0 <= stage < self.stages:
            raise ValueError(f"pipeline: stage {stage} does not exist; there are {self.stages}")
        return self._calls.tutti_pipeline_rank(self._made, stage)

    def stages_of(self, rank: int) -> list[int]:
        return [stage for stage in range(self.stages) if self.rank_of(stage) == rank]

    def actions(self, rank: int) -> list[Action]:
        """What the rank does, in this order."""
        count = c_int()
        fits("a rank", rank)
        found = self._calls.tutti_pipeline_actions(self._made, rank, byref(count))
        if not found:
            raise ValueError(f"pipeline: rank {rank} does not exist; there are {self.ranks}")
        return [Action(WORKS[a.work], a.stage, a.microbatch) for a in found[:count.value]]

    def check(self) -> None:
        """That all is done once, that the lists come to their ends, and that messages are used as they are sent."""
        _check(self._calls.tutti_pipeline_check(self._made))

    def time(self, forward: float | Sequence[float] = 1.0, backward: float | Sequence[float] | None = None,
             weight: float | Sequence[float] | None = None, message: float = 0.0) -> Timing:
        """What it would take, in the unit of what is given: of each stage, or one for all. backward: of inputs, default
        as forward. weight: default as backward. message: from rank to rank."""
        backward = forward if backward is None else backward
        weight = backward if weight is None else weight
        given = [[one] * self.stages if isinstance(one, (int, float)) else list(map(float, one))
                 for one in (forward, backward, weight)]
        if any(len(one) != self.stages for one in given):
            raise ValueError(f"pipeline: times of {', '.join(str(len(one)) for one in given)} stages; there are "
                             f"{self.stages}")
        of = [(c_double * self.stages)(*one) for one in given]
        cost = _Cost(*(ctypes.cast(one, POINTER(c_double)) for one in of), message)
        counts = [len(self.actions(rank)) for rank in range(self.ranks)]
        ends, busy = (c_double * sum(counts))(), (c_double * self.ranks)()
        makespan, held = c_double(), (c_int * self.ranks)()
        _check(self._calls.tutti_pipeline_time(self._made, byref(cost), ends, byref(makespan), busy, held))
        if not makespan.value < float("inf"):
            raise ValueError("pipeline: these times are too large to be added up")
        rest = iter(ends)
        return Timing(makespan.value, [[next(rest) for _ in range(count)] for count in counts], list(busy), list(held))

    def csv(self) -> str:
        """As torch.distributed.pipelining reads schedules: a line for each rank."""
        return "".join(",".join(map(str, self.actions(rank))) + "\n" for rank in range(self.ranks))

    def split(self, layers: nn.Module | Sequence[nn.Module]) -> list[nn.Sequential]:
        """The layers, of an nn.Sequential, an nn.ModuleList or a list, as all stages, as even as can be, the first ones
        with a layer more. Layers keep their names. Raises ValueError where they are fewer than stages."""
        from torch_tutti._pipeline_runner import split
        return split(layers, self.stages)

    def runner(self, stages: nn.Module | Sequence[nn.Module], loss_fn: Callable[[Any, Any], Tensor] | None = None,
               group: dist.ProcessGroup | None = None) -> Runner:
        """Runs it on this rank's modules, one for each stage that stages_of() tells, in this order, or a single one:
        step() and eval(), for all schedules. For all ranks of the group together.

        A module is called with tensors, and gives a tensor or a tuple of tensors; the last one may give anything that
        loss_fn takes. Shapes and types need not be told, and may change. loss_fn(output, target): one number, the mean
        over the rows of a microbatch. group: of tutti, with the ranks of the pipeline; None: the default group. Raises
        ValueError, on all ranks, for modules that do not fit and where ranks have different pipelines."""
        from torch_tutti._pipeline_runner import Runner
        return Runner(self, stages, loss_fn, group)

    def on_torch(self, stages: Sequence[PipelineStage], **options: Any) -> Any:
        """torch's runtime for schedules that are lists, with this one: step(), and eval() but for zb-v, for which
        torch's own fails, too. stages: this rank's, as stages_of() tells. options: of torch's schedule, such as
        loss_fn."""
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
        given = sorted(stages, key=lambda stage: stage.stage_index)
        wrong = [s for s in given if s.num_stages != self.stages or s.group_size != self.ranks]
        if wrong or not given or [s.stage_index for s in given] != self.stages_of(given[0].group_rank):
            raise ValueError(f"pipeline: {self.name} of {self.ranks} ranks has {self.stages} stages, this rank all of "
                             f"{self.stages_of(given[0].group_rank) if given and not wrong else 'its own'}; given are "
                             f"{[s.stage_index for s in given]} of {[s.num_stages for s in given]}, of groups of "
                             f"{sorted({s.group_size for s in given})}")
        schedule = _PipelineScheduleRuntime(given, self.microbatches, **options)
        with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as file:
            file.write(self.csv())
        try:
            schedule._load_csv(file.name)
        finally:
            os.unlink(file.name)
        return schedule
