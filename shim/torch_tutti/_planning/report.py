"""What `tutti plan` tells: the table of ZeRO where no cluster is named; of a cluster the strategies in their order,
where the time of the best goes, its roofline, and what that comes to. Nothing here computes but what is shown."""
from __future__ import annotations

import argparse
from typing import Any

from torch_tutti._planning.communication import ADVICE, Roof, regime, roofs
from torch_tutti._planning.memory import WAYS, Packing, activations, needs, packed
from torch_tutti._planning.models import Model
from torch_tutti._planning.step import PARTS, Estimate, Job
from torch_tutti._planning.strategy import RECOMPUTE_SHOWN, Ranking, reason
from torch_tutti._planning.units import bytes_shown, scaled, seconds_shown

FORMAT, VERSION = "tutti plan", 1
MOST_BUBBLE, LEAST_HIDDEN = 0.1, 0.8                    # what one aims at
LEVELS = {"local": "in a host", "across": "between hosts"}


# ---- no cluster: by stage of ZeRO ----
def stages(model: Model, options: argparse.Namespace) -> list[str]:
    sequences, recompute = options.batch or 1, options.recompute or "none"
    passing = activations(model, sequences, options.sequence, recompute, options.precision)
    lines = [f"{model.parameters / 1e9:.2f} B parameters, {options.precision}, AdamW; {options.ranks} ranks on "
             f"{options.hosts} hosts",
             f"activations of a rank: {bytes_shown(passing)} ({sequences} x {options.sequence} tokens, recomputed: "
             f"{recompute})", "",
             f"{'bytes':<18}{'parameters':>12}{'gradients':>12}{'optimizer':>12}{'a rank':>12}{'a host':>12}"
             f"{'sent':>12}"]
    for way in WAYS:
        if options.compress and way == "stage 0":       # which does not: it is DDP's
            continue
        sizes = (options.ranks, options.hosts, options.precision)
        need = needs(model, way, *sizes)
        if options.compress:
            need = packed(need, model, way, *sizes, Packing(options.compress, options.share))
        rank = need.kept + passing
        cells = (need.parameters, need.gradients, need.state, rank, rank * options.ranks / options.hosts, need.sent)
        lines.append(f"{way:<18}" + "".join(f"{bytes_shown(cell):>12}" for cell in cells))
    if options.compress:
        lines[0] += f"; gradients travel as {options.compress}"
    return [*lines, "", "a rank, a host: with activations; stage 3: a host's one copy counts in part for each rank; "
                        "sent: by a host in a step"]


# ---- a cluster ----
def opening(job: Job, ranking: Ranking) -> list[str]:
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


def line(job: Job, one: Estimate, best: Estimate) -> str:
    s = one.strategy
    return (f"{s.tp:>4}{s.pp:>4}{s.dp:>5}{s.ep:>4}{s.zero:>5}{s.microbatches:>5}{s.sequences:>4}  {s.recompute:<10}"
            f"{bytes_shown(one.memory):>9}{seconds_shown(one.time):>9}{one.mfu(job):>7.1%}{one.bubble / one.time:>8.1%}"
            f"{one.hidden:>8.1%}  {reason(job, one, best)}")


def table(job: Job, ranking: Ranking) -> list[str]:
    best = ranking.best[0]
    lines = [HEADER, *(line(job, one, best) for one in ranking.best)]
    if ranking.others:
        lines += ["others:", *(line(job, one, best) for one in ranking.others)]
    return lines


def roofs_of(job: Job, one: Estimate) -> list[Roof]:
    return roofs(job.cluster, one.traffic, job.flops / job.cluster.devices, job.tokens, {"data"})


def roofline(job: Job, one: Estimate) -> list[str]:
    """Of what is sent by whom, operations for each byte, beside those from which on computing takes longer."""
    lines = [f"{'roofline':<10}{'where':<15}{'sent':>10}{'FLOP/byte':>11}{'ridge':>8}{'ratio':>7}{'critical':>10}  "
             "regime"]
    for roof in roofs_of(job, one):
        critical = f"{scaled(roof.critical)}" if roof.critical else "none "
        found = regime(roof.ratio)
        lines.append(f"{roof.kind:<10}{LEVELS[roof.level]:<15}{bytes_shown(roof.sent):>10}{scaled(roof.intensity):>11}"
                     f"{scaled(roof.ridge):>8}{roof.ratio:>7.2f}{critical:>10}  {found}: {ADVICE[found]}")
    return lines if len(lines) > 1 else ["nothing is sent"]


def where(job: Job, one: Estimate) -> str:
    named = {"compute": "computing", "bubble": "bubble", "tensor": "tp", "experts": "ep", "pipeline": "pp, messages",
             "data": "dp, not hidden", "update": "update"}
    return ", ".join(f"{named[part]} {getattr(one, part) / one.time:.1%}" for part in PARTS if getattr(one, part))


def advice(job: Job, one: Estimate) -> list[str]:
    s, ways = one.strategy, []
    for name, degree in (("tensor", s.tp), ("pipeline", s.pp), ("data", s.dp), ("expert", s.ep)):
        ways += [f"{name} parallel {degree}"] if degree > 1 else []
    text = (f"recommended: {', '.join(ways) or 'one device'}, stage {s.zero} of ZeRO, {s.microbatches} microbatches of "
            f"{s.sequences} x {job.length} tokens, {RECOMPUTE_SHOWN[s.recompute]}")
    bubble, exposed = one.bubble / one.time, one.exposed / one.time
    more = "" if bubble < MOST_BUBBLE else ": more microbatches, or another --schedule"
    return [text, f"efficiency: MFU {one.mfu(job):.1%}; bubble {bubble:.1%} (aim: below {MOST_BUBBLE:.0%}){more}; "
                  f"communication {one.hidden:.1%} hidden (aim: above {LEAST_HIDDEN:.0%}), the rest is {exposed:.1%} "
                  "of the step"]


def report(job: Job, ranking: Ranking) -> list[str]:
    best = ranking.best[0]
    kept = (f"{bytes_shown(best.kept)} of parameters, gradients and the optimizer's, {bytes_shown(best.passing)} of "
            "activations")
    return [*opening(job, ranking), *table(job, ranking), "", f"the best: {where(job, best)}; memory: {kept}", "",
            *roofline(job, best), "", *advice(job, best)]


# ---- as JSON ----
def document(name: str | None, job: Job, ranking: Ranking) -> dict[str, Any]:
    """The same, in seconds and bytes."""
    best, device = ranking.best[0], job.cluster.device

    def of(one: Estimate) -> dict[str, Any]:
        return {**one.strategy._asdict(), "memory": one.memory, "kept": one.kept, "activations": one.passing,
                "seconds": one.time, **{part: getattr(one, part) for part in PARTS}, "mfu": one.mfu(job),
                "hidden": one.hidden, "reason": reason(job, one, best)}
    return {"format": FORMAT, "version": VERSION, "model": name,
            "parameters": job.model.parameters, "active": job.model.active,
            "cluster": {"devices": job.cluster.devices, "hosts": job.cluster.hosts, "flops": device.flops,
                        "efficiency": device.efficiency, "memory": device.memory, "bandwidth": device.bandwidth,
                        "local": job.cluster.local._asdict(), "across": job.cluster.across._asdict()},
            "batch": job.batch, "sequence": job.length, "precision": job.precision, "schedule": job.schedule,
            "looked_at": ranking.looked_at, "fitting": ranking.fitting, "least_memory": ranking.least.memory,
            "strategies": [of(one) for one in ranking.best], "others": [of(one) for one in ranking.others],
            "roofline": [{**roof._asdict(), "ratio": roof.ratio, "regime": regime(roof.ratio)}
                         for roof in roofs_of(job, best)]}
