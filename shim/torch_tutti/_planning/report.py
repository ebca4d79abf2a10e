"""The texts of `tutti plan`: without a cluster the table of ZeRO; with one the ranked strategies, the parts of the best
one's time, its roofline, and a recommendation."""
from __future__ import annotations

import argparse
from typing import Any

from torch_tutti._planning.communication import ADVICE, Roof, regime, roofs
from torch_tutti._planning.memory import WAYS, Packing, activations, needs, with_packing
from torch_tutti._planning.models import Model
from torch_tutti._planning.step import PARTS, Estimate, Job
from torch_tutti._planning.strategy import RECOMPUTE_SHOWN, Ranking, reason
from torch_tutti._planning.units import bytes_shown, scaled, seconds_shown

FORMAT, VERSION = "tutti plan", 1
MOST_BUBBLE, LEAST_HIDDEN = 0.1, 0.8                    # recommended share of the bubble, and of hidden communication
LEVELS = {"local": "in a host", "across": "between hosts"}


# ---- without a cluster: by stage of ZeRO ----
def stages(model: Model, options: argparse.Namespace) -> list[str]:
    """Returns the lines of the table of ZeRO: what a rank and a host need for each way to divide the model."""
    sequences, recompute = options.batch or 1, options.recompute or "none"
    activation_bytes = activations(model, sequences, options.sequence, recompute, options.precision)
    lines = [f"{model.parameters / 1e9:.2f} B parameters, {options.precision}, AdamW; {options.ranks} ranks on "
             f"{options.hosts} hosts",
             f"activations of a rank: {bytes_shown(activation_bytes)} ({sequences} x {options.sequence} tokens, "
             f"recomputed: {recompute})", "",
             f"{'bytes':<18}{'parameters':>12}{'gradients':>12}{'optimizer':>12}{'a rank':>12}{'a host':>12}"
             f"{'sent':>12}"]
    for way in WAYS:
        # stage 0 does not compress gradients; DDP does
        if options.compress and way == "stage 0":
            continue
        sizes = (options.ranks, options.hosts, options.precision)
        need = needs(model, way, *sizes)
        if options.compress:
            need = with_packing(need, model, way, *sizes, Packing(options.compress, options.share))
        rank = need.kept + activation_bytes
        cells = (need.parameters, need.gradients, need.state, rank, rank * options.ranks / options.hosts, need.sent)
        lines.append(f"{way:<18}" + "".join(f"{bytes_shown(cell):>12}" for cell in cells))
    if options.compress:
        lines[0] += f"; gradients travel as {options.compress}"
    return [*lines, "", "a rank, a host: with activations; stage 3: a host's one copy counts in part for each rank; "
                        "sent: by a host in a step"]


# ---- a cluster ----
def opening(job: Job, ranking: Ranking) -> list[str]:
    """Returns the lines that describe the model, the cluster, the step and how many strategies fit."""
    model, cluster = job.model, job.cluster
    active = f", of which a token meets {model.active / 1e9:.2f} B" if model.experts else ""
    hosts = "one host" if cluster.hosts == 1 else f"{cluster.hosts} hosts"
    between = ("" if cluster.hosts == 1 else f", between hosts {scaled(cluster.across.speed)}B/s and "
               f"{seconds_shown(cluster.across.latency)} of a host")
    device = cluster.device
    return [f"{model.parameters / 1e9:.2f} B parameters{active}; {job.precision}, AdamW",
            f"{cluster.devices} device{'s' * (cluster.devices > 1)} on {hosts}: {scaled(device.flops)}FLOP/s at most, "
            f"of which {device.efficiency:.0%} is reached, and {bytes_shown(device.memory)} each",
            f"links: in a host {scaled(cluster.local.speed)}B/s and {seconds_shown(cluster.local.latency)} of a device"
            f"{between}",
            f"a step: {job.batch} sequences of {job.length} tokens, {job.tokens / 1e6:.3g} M; schedule {job.schedule}",
            f"{ranking.looked_at} strateg{'y' if ranking.looked_at == 1 else 'ies'}, of which {ranking.fitting} "
            f"fit{'s' if ranking.fitting == 1 else ''}; the least memory: {bytes_shown(ranking.least.memory)}", ""]


HEADER = (f"{'tp':>4}{'pp':>4}{'dp':>5}{'ep':>4}{'zero':>5}{'m':>5}{'seq':>4}  {'recomputed':<10}{'memory':>9}"
          f"{'step':>9}{'MFU':>7}{'bubble':>8}{'hidden':>8}  loses by")


def line(job: Job, estimate: Estimate, best: Estimate) -> str:
    """Returns the line of a strategy in the table."""
    strategy = estimate.strategy
    return (f"{strategy.tp:>4}{strategy.pp:>4}{strategy.dp:>5}{strategy.ep:>4}{strategy.zero:>5}"
            f"{strategy.microbatches:>5}{strategy.sequences:>4}  {strategy.recompute:<10}"
            f"{bytes_shown(estimate.memory):>9}{seconds_shown(estimate.time):>9}{estimate.mfu(job):>7.1%}"
            f"{estimate.bubble / estimate.time:>8.1%}{estimate.hidden:>8.1%}  {reason(job, estimate, best)}")


def table(job: Job, ranking: Ranking) -> list[str]:
    """Returns the table of strategies: the best, then others."""
    best = ranking.best[0]
    lines = [HEADER, *(line(job, estimate, best) for estimate in ranking.best)]
    if ranking.others:
        lines += ["others:", *(line(job, estimate, best) for estimate in ranking.others)]
    return lines


def roofs_of(job: Job, estimate: Estimate) -> list[Roof]:
    """Returns the rooflines of an estimate's communication."""
    return roofs(job.cluster, estimate.traffic, job.flops / job.cluster.devices, job.tokens, {"data"})


def roofline(job: Job, estimate: Estimate) -> list[str]:
    """Returns a line for each kind and level of communication: operations per byte, the ridge, and the regime."""
    lines = [f"{'roofline':<10}{'where':<15}{'sent':>10}{'FLOP/byte':>11}{'ridge':>8}{'ratio':>7}{'critical':>10}  "
             "regime"]
    for roof in roofs_of(job, estimate):
        critical = f"{scaled(roof.critical)}" if roof.critical else "none "
        found = regime(roof.ratio)
        lines.append(f"{roof.kind:<10}{LEVELS[roof.level]:<15}{bytes_shown(roof.sent):>10}{scaled(roof.intensity):>11}"
                     f"{scaled(roof.ridge):>8}{roof.ratio:>7.2f}{critical:>10}  {found}: {ADVICE[found]}")
    return lines if len(lines) > 1 else ["nothing is sent"]


def where(job: Job, estimate: Estimate) -> str:
    """Returns the share of each part of a step's time, as text."""
    named = {"compute": "computing", "bubble": "bubble", "tensor": "tp", "experts": "ep", "pipeline": "pp, messages",
             "data": "dp, not hidden", "update": "update"}
    return ", ".join(f"{named[part]} {getattr(estimate, part) / estimate.time:.1%}" for part in PARTS
                     if getattr(estimate, part))


def advice(job: Job, estimate: Estimate) -> list[str]:
    """Returns the lines that recommend a strategy and rate its efficiency."""
    strategy, degrees = estimate.strategy, []
    for name, degree in (("tensor", strategy.tp), ("pipeline", strategy.pp), ("data", strategy.dp),
                         ("expert", strategy.ep)):
        degrees += [f"{name} parallel {degree}"] if degree > 1 else []
    text = (f"recommended: {', '.join(degrees) or 'one device'}, stage {strategy.zero} of ZeRO, "
            f"{strategy.microbatches} microbatches of {strategy.sequences} x {job.length} tokens, "
            f"{RECOMPUTE_SHOWN[strategy.recompute]}")
    bubble, exposed = estimate.bubble / estimate.time, estimate.exposed / estimate.time
    remedy = "" if bubble < MOST_BUBBLE else ": more microbatches, or another --schedule"
    return [text, f"efficiency: MFU {estimate.mfu(job):.1%}; bubble {bubble:.1%} (aim: below {MOST_BUBBLE:.0%})"
                  f"{remedy}; communication {estimate.hidden:.1%} hidden (aim: above {LEAST_HIDDEN:.0%}), the rest is "
                  f"{exposed:.1%} of the step"]


def report(job: Job, ranking: Ranking) -> list[str]:
    """Returns all lines about a cluster."""
    best = ranking.best[0]
    kept = (f"{bytes_shown(best.kept)} of parameters, gradients and the optimizer's, {bytes_shown(best.passing)} of "
            "activations")
    return [*opening(job, ranking), *table(job, ranking), "", f"the best: {where(job, best)}; memory: {kept}", "",
            *roofline(job, best), "", *advice(job, best)]


# ---- as JSON ----
def document(name: str | None, job: Job, ranking: Ranking) -> dict[str, Any]:
    """Returns the content of report() for JSON: times in seconds, sizes in bytes, shares from 0 to 1."""
    best, device = ranking.best[0], job.cluster.device

    def fields_of(estimate: Estimate) -> dict[str, Any]:
        """Returns the fields of a strategy and of its estimate: the bytes of the fullest rank (memory, of which `kept`
        is permanent), the seconds of a step and of its parts, and mfu and hidden as shares."""
        return {**estimate.strategy._asdict(), "memory": estimate.memory, "kept": estimate.kept,
                "activations": estimate.passing, "seconds": estimate.time,
                **{part: getattr(estimate, part) for part in PARTS}, "mfu": estimate.mfu(job),
                "hidden": estimate.hidden, "reason": reason(job, estimate, best)}
    return {"format": FORMAT, "version": VERSION, "model": name,
            "parameters": job.model.parameters, "active": job.model.active,
            "cluster": {"devices": job.cluster.devices, "hosts": job.cluster.hosts, "flops": device.flops,
                        "efficiency": device.efficiency, "memory": device.memory, "bandwidth": device.bandwidth,
                        "local": job.cluster.local._asdict(), "across": job.cluster.across._asdict()},
            "batch": job.batch, "sequence": job.length, "precision": job.precision, "schedule": job.schedule,
            "looked_at": ranking.looked_at, "fitting": ranking.fitting, "least_memory": ranking.least.memory,
            "strategies": [fields_of(estimate) for estimate in ranking.best],
            "others": [fields_of(estimate) for estimate in ranking.others],
            "roofline": [{**roof._asdict(), "ratio": roof.ratio, "regime": regime(roof.ratio)}
                         for roof in roofs_of(job, best)]}
