"""The command `tutti plan`: its options, the model and the cluster that they describe, and its output. Imports torch
only to measure links."""
from __future__ import annotations

import argparse
import json
import os
from typing import Any

from torch_tutti._arguments import PICTURES, picture, whole
from torch_tutti._planning import report, units
from torch_tutti._planning.communication import DEVICES, Cluster
from torch_tutti._planning.memory import FORMS, PRECISIONS, RECOMPUTED
from torch_tutti._planning.models import ALIASES, MODELS, Model
from torch_tutti._planning.strategy import DIVISIBLE, Job, ranked
from torch_tutti._planning.units import Link

SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
DEFAULT_DEVICE, DEFAULT_TOP, DEFAULT_TOKENS, TIMEOUT_S = "h100", 10, 4 << 20, 300
# The largest value of any size, and the most devices, for which all divisions can be enumerated.
MOST, MOST_DEVICES = 1 << 50, 1 << 20
# The options that describe a cluster.
CLUSTER_OPTIONS = ("device", "flops", "efficiency", "memory", "link", "local_link", "batch_tokens", "top", "picture",
                   "schedule", *DIVISIBLE)


def has_cluster(options: argparse.Namespace) -> bool:
    """True if an option under "a cluster" is given."""
    return options.json or options.measure or any(getattr(options, name) is not None for name in CLUSTER_OPTIONS)


# ---- from options to a job ----
def model_of(options: argparse.Namespace) -> Model:
    """Returns the model that the options describe, by name or by sizes. Raises ValueError for neither or both."""
    sizes = (options.parameters, options.layers, options.width, options.heads)
    if options.model:
        if any(sizes):
            raise ValueError("plan: --model defines all sizes; leave out --parameters, --layers, --width and --heads")
        return MODELS[ALIASES.get(options.model, options.model)]
    if not all(sizes):
        raise ValueError(f"plan: give --model ({', '.join(MODELS)}), or --parameters, --layers, --width and --heads")
    return Model(options.parameters, 0, options.layers, options.width, options.heads)


def _link(given: tuple[float, float | None] | None, default: Link, shared_by: int = 1) -> Link:
    """Returns a link of the given (speed, latency or None). given: None: the default link, with the speeds of the
    `shared_by` devices that share it added."""
    if given is None:
        return Link(default.speed * shared_by, default.latency)
    return Link(given[0], default.latency if given[1] is None else given[1])


def cluster_of(options: argparse.Namespace) -> Cluster:
    """Returns the cluster that the options describe, with defaults of the device."""
    device, devices_per_host = DEVICES[options.device or DEFAULT_DEVICE], options.ranks // options.hosts
    for name in ("flops", "efficiency", "memory"):
        if getattr(options, name) is not None:
            device = device._replace(**{name: getattr(options, name)})
    return Cluster(device, options.ranks, options.hosts, _link(options.local_link, device.local),
                   _link(options.link, device.across, devices_per_host))


def job_of(options: argparse.Namespace) -> Job:
    """Returns the training that the options describe. Raises ValueError for sizes out of range, and for --compress."""
    sizes = ("parameters", "layers", "width", "heads", "sequence", "batch", "batch_tokens")
    too_large = [name for name in sizes if (getattr(options, name) or 0) > MOST]
    if too_large:
        raise ValueError(f"plan: --{too_large[0].replace('_', '-')} is more than {MOST}")
    if options.ranks > MOST_DEVICES:
        raise ValueError(f"plan: {options.ranks} devices; a plan has at most {MOST_DEVICES}")
    tokens = options.batch_tokens or max(options.sequence, DEFAULT_TOKENS // options.sequence * options.sequence)
    if tokens % options.sequence:
        raise ValueError(f"plan: --batch-tokens {tokens} are not a whole number of sequences of {options.sequence} "
                         f"tokens; the next possible number is {(tokens // options.sequence + 1) * options.sequence}")
    if options.compress:
        raise ValueError("plan: --compress applies only to the table of ZeRO; leave it out, or leave out the "
                         "options of the cluster")
    return Job(model_of(options), cluster_of(options), tokens // options.sequence, options.sequence, options.precision,
               options.schedule or "1f1b")


def fixed_of(options: argparse.Namespace) -> dict[str, int]:
    """Returns the degrees that the options fix, {name: value}, with the name "sequences" for --batch."""
    found = {name: getattr(options, name) for name in DIVISIBLE if getattr(options, name) is not None}
    return found if options.batch is None else {**found, "sequences": options.batch}


# ---- output ----
def _plan(options: argparse.Namespace, job: Job) -> int:
    """Prints the ranking of all strategies for a job, and draws it if asked for. Returns the exit code."""
    ranking = ranked(job, fixed_of(options), options.recompute, options.top or DEFAULT_TOP)
    name = options.model or f"{options.parameters / 1e9:.3g} B parameters"
    if options.json:
        print(json.dumps(report.document(name, job, ranking), indent=2))
    else:
        print("\n".join(report.report(job, ranking)))
    if options.picture:
        from torch_tutti._planning.picture import draw
        draw(name, job, ranking, options.picture)
    return 0


def _measured(options: argparse.Namespace, job: Job) -> int:
    """Runs on each rank: measures the links together with the other ranks. Rank 0 then prints the plan. Returns the
    exit code."""
    from torch_tutti._planning.measure import measure_links
    local, across, rank = measure_links(TIMEOUT_S)
    if rank:
        return 0
    if not options.json:
        names = [name for name, link in (("in a host", local), ("between hosts", across)) if link]
        print(f"links that were measured: {', '.join(names)}")
    return _plan(options, job._replace(cluster=job.cluster._replace(local=local or job.cluster.local,
                                                                    across=across or job.cluster.across)))


def run(options: argparse.Namespace) -> int:
    """Runs the command: prints the table of ZeRO, or with a cluster the plan. Returns the exit code. Raises ValueError
    for invalid options."""
    if options.ranks % options.hosts:
        raise ValueError(f"plan: {options.ranks} ranks are not the same number on each of {options.hosts} hosts")
    if not has_cluster(options):
        print("\n".join(report.stages(model_of(options), options)))
        return 0
    job = job_of(options)
    if not options.measure:
        return _plan(options, job)
    if options.link or options.local_link:
        raise ValueError("plan: --measure measures the links; leave out --link and --local-link")
    from torch_tutti._bench import command, launch
    if launch.ranks_are_started():
        if int(os.environ["WORLD_SIZE"]) < 2:
            raise ValueError("plan: --measure needs two ranks or more, and torchrun has started one")
        return command.as_rank(lambda: _measured(options, job))
    return launch.launch(options.words, command.default_ranks())


def add_parser(commands: Any) -> None:
    """Adds `plan` to the commands of `tutti`."""
    plan = commands.add_parser(
        "plan", help="show what training a model takes, and how to divide it among devices", allow_abbrev=False,
        description="Computes the memory that a model takes on each rank, and the bytes that a host sends in a "
                    "step, for DistributedDataParallel and each stage of torch_tutti.zero. With any option under "
                    "\"a cluster\" it ranks all ways to divide the model among the devices instead.")
    _add_model(plan)
    _add_cluster(plan.add_argument_group("a cluster"))
    plan.set_defaults(run=run)


def _add_model(plan: Any) -> None:
    """Adds the options that describe the model and its training."""
    plan.add_argument("--model", choices=[*MODELS, *ALIASES], metavar="NAME", help=", ".join([*MODELS, *ALIASES]))
    plan.add_argument("--parameters", type=units.count, metavar="COUNT",
                      help="parameters of a model that is not listed, such as 350M")
    for name, help_text in (("layers", "layers of that model"), ("width", "numbers for each token between its layers"),
                            ("heads", "heads of its attention")):
        plan.add_argument(f"--{name}", type=whole(1), metavar="COUNT", help=help_text)
    plan.add_argument("--ranks", "--gpus", type=whole(1), required=True, help="processes that train, one for each "
                                                                              "device")
    plan.add_argument("--hosts", type=whole(1), default=1,
                      help="hosts, with the same number of processes on each (default: %(default)s)")
    plan.add_argument("--batch", type=whole(1),
                      help="sequences of a rank in a pass (default: 1; with a cluster, the best number)")
    plan.add_argument("--sequence", type=units.tokens, default=2048, help="tokens of a sequence (default: %(default)s)")
    plan.add_argument("--precision", choices=PRECISIONS, default="bf16",
                      help="type of parameters and gradients; the optimizer keeps float32 (default: %(default)s)")
    plan.add_argument("--compress", choices=FORMS,
                      help="compression of gradients between ranks, with error feedback; not with a cluster")
    plan.add_argument("--share", type=units.share, default=0.01,
                      help="share that topk and randomk keep (default: %(default)s)")
    plan.add_argument("--recompute", choices=RECOMPUTED,
                      help="activations that are computed again in the backward pass (default: none; with a "
                           "cluster, the best choice)")


def _add_cluster(plan: Any) -> None:
    """Adds the options that describe a cluster."""
    plan.add_argument("--device", choices=DEVICES, help="supplies defaults for unspecified values (default: "
                                                        f"{DEFAULT_DEVICE})")
    plan.add_argument("--flops", type=units.flops, metavar="SPEED", help="peak FLOP/s of a device, such as 989T")
    plan.add_argument("--efficiency", type=units.share, metavar="SHARE",
                      help="achieved fraction of peak FLOP/s, such as 0.5")
    plan.add_argument("--memory", type=units.memory, metavar="SIZE", help="memory of a device, such as 80GB")
    plan.add_argument("--link", type=units.link, metavar="SPEED",
                      help="link of a host to the others, such as 400gbit or 50GB/s; 400gbit,15us adds the latency "
                           "of a message")
    plan.add_argument("--local-link", type=units.link, metavar="SPEED", help="link of a device to others of its host")
    plan.add_argument("--measure", action="store_true",
                      help="measure the links instead, between ranks that torchrun or this command starts")
    plan.add_argument("--batch-tokens", type=units.tokens, metavar="COUNT",
                      help="tokens of a step, on all ranks (default: 4M)")
    plan.add_argument("--schedule", choices=SCHEDULES, help="schedule of pipelines (default: 1f1b)")
    for name, help_text in (("tp", "tensor parallel ranks"), ("pp", "stages of the pipeline"),
                            ("dp", "data parallel ranks"),
                            ("ep", "expert parallel ranks, of the data parallel ones")):
        plan.add_argument(f"--{name}", type=whole(1), metavar="RANKS", help=f"this many {help_text} only")
    plan.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="this stage of ZeRO only")
    plan.add_argument("--top", type=whole(1), metavar="COUNT", help=f"strategies to show (default: {DEFAULT_TOP})")
    plan.add_argument("--picture", type=picture, metavar="FILE", help=f"draw the strategies ({', '.join(PICTURES)})")
    plan.add_argument("--json", action="store_true", help="print one JSON object")
