"""Finds the ways to divide a training among the devices of a cluster, ranks those that fit, and explains why the others
are slower."""
from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from torch_tutti._planning.memory import RECOMPUTED
from torch_tutti._planning.step import CHUNKS, PARTS, Estimate, Job, Strategy, estimate, layers_of
from torch_tutti._planning.units import bytes_shown

SEQUENCES = [1, 2, 4, 8, 16, 32]                        # numbers of sequences in a microbatch that are tried
FEW = ("naive", "gpipe")                                # schedules that may have fewer microbatches than ranks
MOST_STAGES = 256
MOST_OTHERS = 5
ALIKE = 0.001                                           # share of a step below which a difference needs no reason
RECOMPUTE_SHOWN = {"none": "all activations kept", "selective": "attention recomputed", "full": "all recomputed"}
DIVISIBLE = ("tp", "pp", "dp", "ep", "zero")


# ---- candidates ----
def _divisors(number: int) -> list[int]:
    """Returns the divisors of a number in ascending order."""
    small = [n for n in range(1, int(number ** 0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _divisions(job: Job, fixed: dict[str, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tp, pp, dp, ep) that the model and the cluster allow. tp is at most twice the devices of a host, or the
    tp in `fixed`."""
    model, cluster = job.model, job.cluster
    for tp in _divisors(cluster.devices):
        if (model.heads % tp or (model.key_heads or model.heads) % tp or cluster.per_host % tp and tp % cluster.per_host
                or tp > max(2 * cluster.per_host, fixed.get("tp", 0))):
            continue
        for pp in _divisors(cluster.devices // tp):
            dp = cluster.devices // tp // pp
            stages = pp * (CHUNKS.get(job.schedule, 1) if pp > 1 else 1)
            if stages > model.layers or pp > MOST_STAGES or job.batch % dp:
                continue
            for ep in _divisors(dp) if model.experts else [1]:
                if not model.experts or model.experts.count % ep == 0:
                    yield tp, pp, dp, ep


def candidates(job: Job, fixed: dict[str, int], recompute: str | None = None) -> Iterator[Strategy]:
    """Yields all strategies that the sizes allow. fixed: required values of tp, pp, dp, ep, zero or sequences.
    recompute: the required one, or None for any."""
    for tp, pp, dp, ep in _divisions(job, fixed):
        sequences_of_rank = job.batch // dp
        for zero in ((0,) if dp == 1 else (0, 1) if pp > 1 else (0, 1, 2, 3)):
            if any(fixed.get(name, value) != value for name, value in zip(DIVISIBLE, (tp, pp, dp, ep, zero))):
                continue
            for sequences in [fixed["sequences"]] if "sequences" in fixed else SEQUENCES:
                microbatches = sequences_of_rank // sequences
                if sequences_of_rank % sequences:
                    continue
                if pp > 1 and (microbatches < pp and job.schedule not in FEW
                               or job.schedule == "interleaved" and microbatches % pp):
                    continue
                for recomputation in [recompute] if recompute else RECOMPUTED:
                    yield Strategy(tp, pp, dp, ep, zero, microbatches, sequences, recomputation)


class Ranking(NamedTuple):
    """The ranked strategies. best: for each division that fits, its fastest strategy, the fastest first. others:
    divisions that do not fit, and one whose tensor parallelism crosses hosts, the fastest first. least: the strategy
    with the least memory. looked_at, fitting: numbers of strategies."""
    best: list[Estimate]
    others: list[Estimate]
    least: Estimate
    looked_at: int
    fitting: int


def ranked(job: Job, fixed: dict[str, int], recompute: str | None, top: int) -> Ranking:
    """Ranks the strategies. top: the most in `best`. Raises ValueError if no strategy is possible or none fits."""
    found = [estimate(job, s, simulated=False) for s in candidates(job, fixed, recompute)]
    if not found:
        raise ValueError(_text_without_division(job, fixed))
    least, capacity = min(found, key=lambda estimated: estimated.memory), job.cluster.device.memory
    fitting = [estimated for estimated in found if estimated.memory <= capacity]
    if not fitting:
        raise ValueError(_text_without_memory(job, least))
    best = _fastest(job, fitting, top)
    shown = {estimated.strategy.division for estimated in best}
    crossing_hosts = [estimated for estimated in fitting
                      if estimated.strategy.tp > job.cluster.per_host and estimated.strategy.division not in shown]
    fitting_divisions = {estimated.strategy.division for estimated in fitting}
    unfit: dict[tuple[int, ...], Estimate] = {}
    for estimated in sorted(found, key=lambda estimated: estimated.memory):
        if estimated.strategy.division not in fitting_divisions:
            unfit.setdefault(estimated.strategy.division, estimated)
    others = _fastest(job, list(unfit.values()), MOST_OTHERS) + _fastest(job, crossing_hosts, 1)
    return Ranking(best, others, least, len(found), len(fitting))


def _fastest(job: Job, found: list[Estimate], top: int) -> list[Estimate]:
    """Returns the fastest strategy of each division, at most `top`, by exact times. A strategy with only a lower bound
    is simulated when its bound is the least of all times."""
    queue = [(estimated.time, estimated.strategy, estimated) for estimated in found]
    heapq.heapify(queue)
    best: dict[tuple[int, ...], Estimate] = {}
    while queue and len(best) < top:
        _, strategy, estimated = heapq.heappop(queue)
        if estimated.exact:
            best.setdefault(strategy.division, estimated)
        elif strategy.division not in best:
            exact = estimate(job, strategy)
            heapq.heappush(queue, (exact.time, strategy, exact))
    return list(best.values())


def _text_without_memory(job: Job, least: Estimate) -> str:
    """Returns the error text for a job that fits no strategy. least: the strategy with the least memory."""
    strategy = least.strategy
    return (f"plan: nothing fits {bytes_shown(job.cluster.device.memory)} of a device; the least is "
            f"{bytes_shown(least.memory)}, with tp {strategy.tp}, pp {strategy.pp}, dp {strategy.dp}, "
            f"ep {strategy.ep}, stage {strategy.zero} of ZeRO and {RECOMPUTE_SHOWN[strategy.recompute]}: more devices, "
            "or more memory of each")


def _text_without_division(job: Job, fixed: dict[str, int]) -> str:
    """Returns the error text for a job that cannot be divided."""
    asked = "".join(f" --{'batch' if name == 'sequences' else name} {value}" for name, value in fixed.items())
    model = job.model
    return (f"plan: no division fits {job.cluster.devices} devices{' with' + asked if asked else ''}: tp divides the "
            f"model's {model.key_heads or model.heads} heads, and divides the {job.cluster.per_host} devices of a host "
            f"or is a multiple of them; each stage of a pipeline has one of the {model.layers} layers, and pp is at "
            f"most {MOST_STAGES}; dp divides the {job.batch} sequences of a step; ep divides dp and the experts; a "
            "pipeline needs at least pp microbatches (interleaved: a multiple of pp; naive and gpipe: any number); "
            "ZeRO needs dp > 1, and its stages 2 and 3 exclude a pipeline; give other degrees, or more --batch-tokens")


# ---- reasons ----
def reason(job: Job, estimated: Estimate, best: Estimate) -> str:
    """Returns a phrase that explains why an estimate is slower than the best one, or does not fit."""
    strategy, excess = estimated.strategy, estimated.memory - job.cluster.device.memory
    if excess > 0:
        return f"out of memory by {bytes_shown(excess)}"
    if estimated is best:
        return "best"
    if strategy.tp > job.cluster.per_host:
        return "tp leaves the host"
    extra_seconds = {name: getattr(estimated, name) - getattr(best, name) for name in PARTS}
    slowest_part = max(extra_seconds, key=lambda name: extra_seconds[name])
    share = f"{getattr(estimated, slowest_part) / estimated.time:.1%}"
    if estimated.time - best.time < ALIKE * best.time:
        return f"by less than {ALIKE:.1%}"
    if slowest_part == "compute":
        uneven = job.model.layers % strategy.pp and layers_of(job, strategy, strategy.pp - 1) * strategy.pp > layers_of(
            job, best.strategy, best.strategy.pp - 1) * best.strategy.pp
        return "stages of unequal length" if uneven else "recomputes more"
    return {"bubble": f"bubble {share}", "update": f"update {share}: more of the optimizer on each rank",
            "tensor": f"communication bound: tp {share} of the step",
            "experts": f"communication bound: ep {share} of the step",
            "pipeline": f"communication bound: pp {share} of the step",
            "data": f"communication bound: dp {share} of the step"}[slowest_part]
