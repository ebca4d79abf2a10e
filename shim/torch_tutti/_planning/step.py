"""Estimates the time of a training step and the memory of a device, for one way (Strategy) to divide the training. `s`
is the strategy in all functions.

Ranks are in the order tp-ep-dp-pp of docs/grids.md: tensor parallel ranks are neighbours, stages of a pipeline are
furthest apart. The time is that of the pipeline, whose lists of actions torch_tutti._pipeline simulates, plus the time
of everything that does not overlap with it:

- computing: 6 operations for each parameter that a token meets, 2 forward and 4 backward (Kaplan et al. 2020); 2 more
  if all is recomputed; if attention alone is recomputed, 4 * length * width more for each layer and token.
- tensor parallel: in each layer two all-reduces forward and two backward (Shoeybi et al. 2019), which do not overlap
  with computing. Sequence parallelism sends the same.
- experts: two all-to-alls forward and two backward in each layer that has them (Lepikhin et al. 2020).
- data parallel: as docs/planning.md describes for each stage of ZeRO; sums overlap with a backward pass, gathers with
  the pass that needs the parameters.
- update: 28 bytes of memory traffic for each parameter whose optimizer state the rank keeps."""
from __future__ import annotations

from typing import NamedTuple

from torch_tutti._pipeline import Pipeline
from torch_tutti._planning.communication import Cluster, Group, Traffic, all_reduce, all_to_all, group, half
from torch_tutti._planning.memory import PRECISIONS, activations, needs
from torch_tutti._planning.models import Model

CHUNKS = {"interleaved": 2, "zb-v": 2}                  # stages of a rank; 1 in other schedules
MOST_PLAYED = 1 << 17                                   # most stages * microbatches simulated; more are extrapolated
PARTS = ("compute", "bubble", "tensor", "experts", "pipeline", "data", "update")
UPDATED = 28                                            # bytes read and written for a parameter by AdamW
# by stage of ZeRO: the way of memory.WAYS
WAY = ("DDP", "stage 1", "stage 2", "stage 3, sharded")


class Job(NamedTuple):
    """The training to plan. batch: sequences in a step, on all ranks; length: tokens of each; schedule: a schedule of
    torch_tutti.Pipeline."""
    model: Model
    cluster: Cluster
    batch: int
    length: int
    precision: str = "bf16"
    schedule: str = "1f1b"

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def flops(self) -> float:
        """Operations of a step, on all devices."""
        return 6 * self.model.active * self.tokens


class Strategy(NamedTuple):
    """One way to divide a job. tp, pp, dp, ep: the degrees of tensor, pipeline, data and expert parallelism. zero: the
    stage of ZeRO. microbatches: of a rank in a step. sequences: of a microbatch. recompute: "none", "selective" or
    "full"."""
    tp: int
    pp: int
    dp: int
    ep: int
    zero: int
    microbatches: int
    sequences: int
    recompute: str

    @property
    def division(self) -> tuple[int, ...]:
        return self[:5]


class Estimate(NamedTuple):
    """The estimate of a strategy. kept, passing: bytes of the fullest rank: permanent ones, and activations. compute to
    update: seconds of the parts of a step, whose sum is its time; communication counts only where computing waits for
    it. sent: seconds of all communication, hidden or not. traffic: bytes of a device, by kind. exact: the pipeline was
    simulated; otherwise the time is a lower bound."""
    strategy: Strategy
    kept: float
    passing: float
    compute: float
    bubble: float
    tensor: float
    experts: float
    pipeline: float
    data: float
    update: float
    sent: float
    traffic: dict[str, Traffic]
    exact: bool

    @property
    def memory(self) -> float:
        return self.kept + self.passing

    @property
    def time(self) -> float:
        return sum(getattr(self, part) for part in PARTS)

    @property
    def exposed(self) -> float:
        """Seconds of communication that do not overlap with computing."""
        return self.tensor + self.experts + self.pipeline + self.data

    @property
    def hidden(self) -> float:
        """The share of communication that overlaps with computing."""
        return max(0.0, 1 - self.exposed / self.sent) if self.sent else 1.0

    def mfu(self, job: Job) -> float:
        """Model FLOPs utilization: the model's operations divided by the devices' peak in the same time (Chowdhery et
        al. 2022)."""
        return job.flops / (self.time * job.cluster.device.flops * job.cluster.devices)


# ---- what a rank of a pipeline has ----
def layers_of(job: Job, s: Strategy, rank: int) -> int:
    """Returns the layers of a pipeline rank. If they cannot be equal, the last ranks have one more: they keep fewer
    activations."""
    each, more = divmod(job.model.layers, s.pp)
    return each + (rank >= s.pp - more)


def parts(job: Job, s: Strategy, rank: int) -> tuple[Model, Model]:
    """Returns a device's part of the model: (all but routed experts, routed experts). Embedding and head are at the two
    ends of the pipeline; if they are tied, both ends have a copy."""
    model, layers = job.model, layers_of(job, s, rank)
    ends = 1.0 if s.pp == 1 else (rank in (0, s.pp - 1)) * (1.0 if model.tied else 0.5)
    own = ends * model.own / s.tp
    dense = (model.parameters - model.own - model.routed) * layers / model.layers / s.tp + own
    routed = model.routed * layers / model.layers / s.tp / s.ep
    return (model._replace(parameters=round(dense), own=round(own), layers=layers),
            model._replace(parameters=round(routed), own=0, layers=layers))


def held(schedule: str, pp: int, microbatches: int, rank: int) -> float:
    """Returns the most microbatches whose activations a rank keeps at the same time; exact for rank 0. rank: in the
    pipeline, from 0. Two stages on a rank ("interleaved", "zb-v") keep activations of half the size each, so two count
    as one. docs/pipelines.md has the table."""
    most = {"naive": 1, "gpipe": microbatches, "1f1b": pp - rank, "zb-h1": pp, "zb-v": pp,
            "interleaved": (2 * (pp - 1) + pp + 1) / 2}[schedule]
    return min(most, microbatches)


def memory_of(job: Job, s: Strategy, rank: int) -> tuple[float, float]:
    """Returns (bytes that a rank keeps permanently, bytes of its activations)."""
    dense, routed = parts(job, s, rank)
    kept = needs(dense, WAY[s.zero], s.dp, 1, job.precision).kept
    if routed.parameters:
        kept += needs(routed, WAY[s.zero], s.dp // s.ep, 1, job.precision).kept
    return kept, activations(job.model, s.sequences, job.length, s.recompute, job.precision, s.tp, dense.layers,
                             held(job.schedule, s.pp, s.microbatches, rank))


# ---- the time of a step ----
def activation(job: Job, s: Strategy) -> float:
    """Returns the bytes of a microbatch's activation between two layers."""
    return s.sequences * job.length * job.model.width * PRECISIONS[job.precision][0]


def passes(s: Strategy) -> int:
    """Returns the passes through a layer: forward and backward, and a second forward if all is recomputed."""
    return 3 if s.recompute == "full" else 2


def tensor_traffic(job: Job, s: Strategy) -> Traffic:
    """Returns the tensor parallel traffic of a layer and a microbatch, in one pass."""
    return all_reduce(group(job.cluster, s.tp, 1), activation(job, s)).multiplied_by(2) if s.tp > 1 else Traffic()


def expert_traffic(job: Job, s: Strategy) -> Traffic:
    """Returns the expert parallel traffic of a layer and a microbatch in one pass, averaged over all layers."""
    experts = job.model.experts
    if s.ep == 1 or not experts:
        return Traffic()
    routed = all_to_all(group(job.cluster, s.ep, s.tp), experts.copies * activation(job, s) / s.tp)
    return routed.multiplied_by(2 * experts.layers / job.model.layers)


def message(job: Job, s: Strategy) -> Traffic:
    """Returns the traffic of a microbatch from one stage to the next: each tensor parallel rank sends its part to its
    counterpart."""
    amount, cluster = activation(job, s) / s.tp, job.cluster
    if s.pp == 1:
        return Traffic()
    if cluster.hosts == 1:
        return Traffic(amount, 0, 1)
    return Traffic(0, amount * min(s.tp * s.dp, cluster.per_host), 0, 1)


def work(job: Job, s: Strategy) -> tuple[float, float, float]:
    """Returns the seconds of computing for a microbatch in one layer: (forward, backward of inputs, backward of
    weights)."""
    tokens, model = s.sequences * job.length, job.model
    forward = 2 * model.active / model.layers * tokens / s.tp / job.cluster.rate
    recomputed = {"none": 0.0, "full": forward,
                  "selective": 4 * job.length * model.width * tokens / s.tp / job.cluster.rate}[s.recompute]
    return forward, forward + recomputed, forward


def data_traffic(job: Job, s: Strategy, rank: int) -> tuple[Traffic, Traffic]:
    """Returns (traffic of the dense part, traffic of the experts) of one reduce-scatter of a rank's gradients. One
    all-gather of its parameters has the same traffic. Each layer is a unit with its own messages."""
    value_bytes = PRECISIONS[job.precision][0]
    dense, routed = parts(job, s, rank)

    def half_of(members: Group, part: Model) -> Traffic:
        """Returns the traffic of one reduce-scatter of a part of the model, layer by layer."""
        return half(members, value_bytes * part.parameters / part.layers).multiplied_by(part.layers)
    return (half_of(group(job.cluster, s.dp, s.tp), dense) if s.dp > 1 else Traffic(),
            half_of(group(job.cluster, s.dp // s.ep, s.tp * s.ep), routed) if s.dp > s.ep and routed.parameters
            else Traffic())


def halves_of(s: Strategy) -> tuple[tuple[float, float, int], ...]:
    """Returns the communication of the stage of ZeRO, a list of (how many reduce-scatters or all-gathers, whether they
    overlap with a backward pass instead of a forward pass, how often in a step)."""
    return {0: ((2, True, 1),), 1: ((1, True, 1), (1, False, 1)), 2: ((1, True, s.microbatches), (1, False, 1)),
            3: ((1, False, s.microbatches), (2, True, s.microbatches))}[s.zero]


def data_parallel(job: Job, s: Strategy, forward: float, backward: float, rank: int) -> tuple[float, float, Traffic]:
    """Returns (exposed seconds, all seconds, traffic) of data parallelism in a step. forward, backward: seconds of one
    pass."""
    dense, routed = data_traffic(job, s, rank)
    half_traffic, exposed, total, sent = dense.added_to(routed), 0.0, 0.0, Traffic()
    for halves, is_behind_backward, times_per_step in halves_of(s):
        seconds = job.cluster.seconds(half_traffic.multiplied_by(halves))
        hideable_seconds = job.cluster.device.overlap * (backward if is_behind_backward else forward)
        exposed, total = (exposed + times_per_step * max(0.0, seconds - hideable_seconds),
                          total + times_per_step * seconds)
        sent = sent.added_to(half_traffic.multiplied_by(halves * times_per_step))
    return exposed, total, sent


def update_seconds(job: Job, s: Strategy, rank: int) -> float:
    """Returns the seconds of the optimizer, which is bound by memory bandwidth."""
    dense, routed = (part.parameters for part in parts(job, s, rank))
    kept = dense / s.dp + routed * s.ep / s.dp if s.zero else dense + routed
    return UPDATED * kept / job.cluster.device.bandwidth


def simulate(schedule: str, layers: list[int], microbatches: int, layer: tuple[float, float, float],
             step: float) -> float:
    """Returns the seconds of the simulated pipeline. layers: of each rank. layer: seconds of one layer, by kind of
    pass. step: seconds of a message."""
    pipeline = Pipeline(schedule, len(layers), microbatches)
    layers_of_stage = [layers[pipeline.rank_of(stage)] / pipeline.chunks for stage in range(pipeline.stages)]
    return pipeline.time(*([seconds * count for count in layers_of_stage] for seconds in layer), step).makespan


def makespan(job: Job, s: Strategy, layer: tuple[float, float, float], step: float, simulated: bool) -> float:
    """Returns the seconds of all passes of a step. layer: seconds of one layer and microbatch, by kind of pass. step:
    seconds of a message. simulated: simulate the pipeline; otherwise the result is a lower bound."""
    layers = [layers_of(job, s, rank) for rank in range(s.pp)]
    if s.pp == 1:
        return s.microbatches * layers[0] * sum(layer)
    if simulated:
        few = max(1, MOST_PLAYED // (2 * s.pp * s.pp)) * s.pp
        if s.microbatches <= 2 * few:
            return simulate(job.schedule, layers, s.microbatches, layer, step)
        first, second = (simulate(job.schedule, layers, factor * few, layer, step) for factor in (1, 2))
        return second + (second - first) * (s.microbatches / few - 2)
    # layers of earlier ranks that the last rank waits for in each turn
    layers_before = sum(layers[:-1]) / CHUNKS.get(job.schedule, 1)
    turns = s.microbatches if job.schedule == "naive" else 1
    # in zb-h1 and zb-v the last rank has other work until the first rank ends
    waits_for_backward = job.schedule not in ("zb-h1", "zb-v")
    waits = turns * (layers_before * (sum(layer) if waits_for_backward else layer[0])
                     + (1 + waits_for_backward) * (s.pp - 1) * step)
    return s.microbatches * layers[-1] * sum(layer) + waits


def estimate(job: Job, s: Strategy, simulated: bool = True) -> Estimate:
    """Estimates time and memory of a strategy. simulated: simulate the pipeline; otherwise the time is a lower
    bound."""
    cluster, microbatches, last = job.cluster, s.microbatches, s.pp - 1
    most_layers = layers_of(job, s, last)
    forward, inputs, weights = work(job, s)
    tensor, experts = tensor_traffic(job, s), expert_traffic(job, s)
    sends = cluster.seconds(tensor), cluster.seconds(experts)
    layer = forward + sum(sends), inputs + (passes(s) - 1) * sum(sends), weights
    step, stages = message(job, s), CHUNKS.get(job.schedule, 1)
    seconds, without_messages = cluster.seconds(step), makespan(job, s, layer, 0.0, simulated)
    waits = makespan(job, s, layer, seconds, simulated) - without_messages if seconds else 0.0
    exposed, total, data = data_parallel(job, s, most_layers * layer[0], most_layers * (layer[1] + layer[2]), last)
    times = [microbatches * most_layers * passes(s) * seconds_of_kind for seconds_of_kind in sends]
    kinds = {"tensor": tensor.multiplied_by(microbatches * most_layers * passes(s)),
             "pipeline": step.multiplied_by(2 * microbatches * stages),
             "experts": experts.multiplied_by(microbatches * most_layers * passes(s)), "data": data}
    # the first rank that has one layer more
    longer = last if job.model.layers % s.pp == 0 else s.pp - job.model.layers % s.pp
    kept, passing = max((memory_of(job, s, rank) for rank in {0, longer, last}), key=sum)
    return Estimate(s, kept, passing, microbatches * most_layers * (forward + inputs + weights),
                    without_messages - microbatches * most_layers * sum(layer),
                    *times, waits, exposed, update_seconds(job, s, last),
                    sum(times) + 2 * microbatches * stages * seconds + total,
                    kinds, simulated or s.pp == 1)
