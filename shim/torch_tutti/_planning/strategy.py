"""Finds the ways to divide a training among the devices of a cluster, ranks those that fit, and explains the
differences."""
from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from torch_tutti._planning.memory import RECOMPUTED
from torch_tutti._planning.step import CHUNKS, PARTS, Estimate, Job, Strategy, estimate, layers_of
from torch_tutti._planning.units import bytes_shown

SEQUENCES = [1, 2, 4, 8, 16, 32]                        # tried numbers of sequences in a microbatch
FEW = ("naive", "gpipe")                                # schedules that may have fewer microbatches than ranks
MOST_STAGES = 256
MOST_OTHERS = 5
ALIKE = 0.001                                           # share of a step below which a difference needs no reason
RECOMPUTE_SHOWN = {"none": "all activations kept", "selective": "attention recomputed", "full": "all recomputed"}
DIVISIBLE = ("tp", "pp", "dp", "ep", "zero")


# ---- candidates ----
def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number ** 0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _divisions(job: Job, fixed: dict[str, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tp, pp, dp, ep) that the model and the cluster allow."""
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
    recompute: required, or None for any."""
    for tp, pp, dp, ep in _divisions(job, fixed):
        share = job.batch // dp
        for zero in ((0,) if dp == 1 else (0, 1) if pp > 1 else (0, 1, 2, 3)):
            if any(fixed.get(name, value) != value for name, value in zip(DIVISIBLE, (tp, pp, dp, ep, zero))):
                continue
            for sequences in [fixed["sequences"]] if "sequences" in fixed else SEQUENCES:
                microbatches = share // sequences
                if share % sequences:
                    continue
                if pp > 1 and (microbatches < pp and job.schedule not in FEW
                               or job.schedule == "interleaved" and microbatches % pp):
                    continue
                for way in [recompute] if recompute else RECOMPUTED:
                    yield Strategy(tp, pp, dp, ep, zero, microbatches, sequences, way)


class Ranking(NamedTuple):
    """best: the fastest strategy of each division that fits, the fastest first. others: divisions that do not fit, and
    one whose tensor parallelism crosses hosts, the fastest first. least: the strategy with the least memory. looked_at,
    fitting: numbers of strategies."""
    best: list[Estimate]
    others: list[Estimate]
    least: Estimate
    looked_at: int
    fitting: int


def ranked(job: Job, fixed: dict[str, int], recompute: str | None, top: int) -> Ranking:
    """Ranks the strategies; `top`: the most in `best`. Raises ValueError if none is possible or none fits."""
    found = [estimate(job, s, play=False) for s in candidates(job, fixed, recompute)]
    if not found:
        raise ValueError(_nothing(job, fixed))
    least, room = min(found, key=lambda one: one.memory), job.cluster.device.memory
    fitting = [one for one in found if one.memory <= room]
    if not fitting:
        raise ValueError(_too_large(job, least))
    best = _fastest(job, fitting, top)
    shown = {one.strategy.division for one in best}
    leaving = [one for one in fitting if one.strategy.tp > job.cluster.per_host and one.strategy.division not in shown]
    there = {one.strategy.division for one in fitting}
    unfit: dict[tuple[int, ...], Estimate] = {}
    for one in sorted(found, key=lambda one: one.memory):
        if one.strategy.division not in there:
            unfit.setdefault(one.strategy.division, one)
    others = _fastest(job, list(unfit.values()), MOST_OTHERS) + _fastest(job, leaving, 1)
    return Ranking(best, others, least, len(found), len(fitting))


def _fastest(job: Job, found: list[Estimate], top: int) -> list[Estimate]:
    """The fastest strategy of each division, at most `top`, by exact times. A strategy with only a lower bound is
    simulated when its bound is the least of all."""
    queue = [(one.time, one.strategy, one) for one in found]
    heapq.heapify(queue)
    best: dict[tuple[int, ...], Estimate] = {}
    while queue and len(best) < top:
        _, s, one = heapq.heappop(queue)
        if one.exact:
            best.setdefault(s.division, one)
        elif s.division not in best:
            exact = estimate(job, s)
            heapq.heappush(queue, (exact.time, s, exact))
    return list(best.values())


def _too_large(job: Job, least: Estimate) -> str:
    s = least.strategy
    return (f"plan: nothing fits {bytes_shown(job.cluster.device.memory)} of a device; the least is "
            f"{bytes_shown(least.memory)}, with tp {s.tp}, pp {s.pp}, dp {s.dp}, ep {s.ep}, stage {s.zero} of ZeRO and "
            f"{RECOMPUTE_SHOWN[s.recompute]}: more devices, or more memory of each")


def _nothing(job: Job, fixed: dict[str, int]) -> str:
    asked = "".join(f" --{'batch' if name == 'sequences' else name} {value}" for name, value in fixed.items())
    model = job.model
    return (f"plan: no division fits {job.cluster.devices} devices{' with' + asked if asked else ''}: tp divides the "
            f"model's {model.key_heads or model.heads} heads and fills hosts, pp is at most "
            f"{min(model.layers, MOST_STAGES)}, for {model.layers} layers, dp divides the {job.batch} sequences of a "
            "step, ep divides dp and the experts, a pipeline has as many microbatches as stages, stages 2 and 3 of "
            "ZeRO have none; give other degrees, or more --batch-tokens")


# ---- reasons ----
def reason(job: Job, one: Estimate, best: Estimate) -> str:
    """Why an estimate is slower than the best one, in a phrase."""
    s, over = one.strategy, one.memory - job.cluster.device.memory
    if over > 0:
        return f"out of memory by {bytes_shown(over)}"
    if one is best:
        return "best"
    if s.tp > job.cluster.per_host:
        return "tp leaves the host"
    more = {name: getattr(one, name) - getattr(best, name) for name in PARTS}
    worst = max(more, key=lambda name: more[name])
    share = f"{getattr(one, worst) / one.time:.1%}"
    if one.time - best.time < ALIKE * best.time:
        return f"by less than {ALIKE:.1%}"
    if worst == "compute":
        uneven = job.model.layers % s.pp and layers_of(job, s, s.pp - 1) * s.pp > layers_of(
            job, best.strategy, best.strategy.pp - 1) * best.strategy.pp
        return "stages of unequal length" if uneven else "recomputes more"
    return {"bubble": f"bubble {share}", "update": f"update {share}: more of the optimizer on each rank",
            "tensor": f"communication bound: tp {share} of the step",
            "experts": f"communication bound: ep {share} of the step",
            "pipeline": f"communication bound: pp {share} of the step",
            "data": f"communication bound: dp {share} of the step"}[worst]
