"""`tutti plan`: what a model's training keeps on each rank, and sends between hosts in a step, divided in each of the
ways that torch_tutti.zero has. The formulas are those of docs/zero.md; nothing is measured, nor is torch imported.

Activations: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4, for
16-bit activations of a GPT layer; other blocks differ a little.
"""
from __future__ import annotations

import argparse
import re
from typing import Any, NamedTuple

from torch_tutti._arguments import whole


class Model(NamedTuple):
    """parameters: in all; own: of them, those outside of the layers. For activations: layers, width, heads."""
    parameters: int
    own: int
    layers: int
    width: int
    heads: int


def _gpt(layers: int, width: int, heads: int, vocabulary: int, positions: int) -> Model:
    own = (vocabulary + positions + 2) * width          # embeddings, one of them the head as well; the last norm
    return Model(layers * (12 * width + 13) * width + own, own, layers, width, heads)


def _llama(layers: int, width: int, heads: int, inner: int, vocabulary: int = 32000, key_heads: int | None = None,
           experts: int = 1) -> Model:
    keys = width // heads * (key_heads or heads)
    layer = 2 * width * (width + keys) + experts * 3 * width * inner + (experts > 1) * experts * width + 2 * width
    own = (2 * vocabulary + 1) * width
    return Model(layers * layer + own, own, layers, width, heads)


def _deepseek_v2() -> Model:
    """Latent attention; 160 experts, of which 2 more are for all, but in the first layer."""
    layers, width, heads, query, latent, turned, head = 60, 5120, 128, 1536, 512, 64, 128
    attention = (width * query + query + query * heads * (head + turned) + width * (latent + turned) + latent
                 + latent * heads * 2 * head + heads * head * width + 2 * width)
    experts = 160 * width + (160 + 2) * 3 * width * 1536
    own = (2 * 102400 + 1) * width
    return Model(layers * attention + (layers - 1) * experts + 3 * width * 12288 + own, own, layers, width, heads)


MODELS = {
    "gpt3-175b": _gpt(96, 12288, 96, 50257, 2048),
    "llama-7b": _llama(32, 4096, 32, 11008),
    "llama-13b": _llama(40, 5120, 40, 13824),
    "llama-33b": _llama(60, 6656, 52, 17920),
    "llama-65b": _llama(80, 8192, 64, 22016),
    "llama2-70b": _llama(80, 8192, 64, 28672, key_heads=8),
    "mixtral-8x7b": _llama(32, 4096, 32, 14336, key_heads=8, experts=8),
    "deepseek-v2": _deepseek_v2(),
}
PRECISIONS = {"bf16": (2, 12), "fp32": (4, 8)}          # bytes of a value and a gradient; of what the optimizer keeps
WAYS = ("DDP", "stage 0", "stage 1", "stage 2", "stage 3", "stage 3, sharded")
# by form of torch_tutti.compression: bytes of a gradient on its way; topk, randomk: of one that is kept
FORMS = {"fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 128, "int4": 0.5 + 4 / 128, "topk": 8.0, "randomk": 4.0}


class Need(NamedTuple):
    """Bytes of a rank: parameters, gradients, the optimizer's; and those that a host sends to others in a step."""
    parameters: float
    gradients: float
    state: float
    sent: float


class Packing(NamedTuple):
    """How gradients travel, see docs/compression.md; share: what topk and randomk keep."""
    form: str
    share: float = 0.01

    def number_bytes(self, sides: int = 1) -> float:
        """Of all gradients, on average; sides: on the way back from so many."""
        if self.form == "topk":
            return FORMS["topk"] * min(1.0, self.share * min(sides, 4))
        return FORMS[self.form] * (self.share if self.form == "randomk" else 1)


def packed(need: Need, model: Model, way: str, ranks: int, hosts: int, precision: str, packing: Packing) -> Need:
    """The same, where gradients travel packed, and what is lost joins the next ones."""
    count, across = model.parameters, (hosts - 1) / hosts
    plain = across * PRECISIONS[precision][0] * count
    there, back = across * packing.number_bytes() * count, across * packing.number_bytes(hosts) * count
    sent = there + back if way == "DDP" else need.sent - plain + there
    sums_first = ranks // hosts if hosts > 1 else 1
    return need._replace(gradients=need.gradients + 4 * count / sums_first, sent=sent)


def needs(model: Model, way: str, ranks: int, hosts: int, precision: str) -> Need:
    value, kept = PRECISIONS[precision]
    whole, own = value * model.parameters, value * model.own
    layer = (whole - own) / model.layers
    across = (hosts - 1) / hosts
    if way in ("DDP", "stage 0"):
        return Need(whole, whole, kept * model.parameters, 2 * across * whole)
    state, summed = kept * model.parameters / ranks, whole / ranks
    buffers = whole if way == "stage 1" else min(whole, 2 * layer + own)
    if way == "stage 3, sharded":                       # gathered forward, and back but for what is still there
        return Need(summed + own + 2 * layer, buffers + summed, state, across * (3 * whole - own - 2 * layer))
    copies = hosts if way == "stage 3" else ranks
    return Need(whole * copies / ranks, buffers + summed, state, 2 * across * whole)


def activations(model: Model, sequences: int, length: int, recompute: str, precision: str) -> float:
    """Bytes of a rank, which has whole layers."""
    tokens = sequences * length * model.width * PRECISIONS[precision][0] / 2
    layer = tokens * (34 + 5 * model.heads * length / model.width)
    return {"none": model.layers * layer, "selective": model.layers * tokens * 34,
            "full": model.layers * tokens * 2 + layer}[recompute]


# ---- the command ----
def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMbB]?)", text)
    count = int(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[found[2].lower()]) if found else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters, such as 350M or 1.3B")
    return count


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share, above 0 and 1 at most")
    return share


def _model_of(options: argparse.Namespace) -> Model:
    sizes = (options.parameters, options.layers, options.width, options.heads)
    if options.model:
        if any(sizes):
            raise ValueError("plan: --model says all sizes; leave --parameters, --layers, --width and --heads out")
        return MODELS[options.model]
    if not all(sizes):
        raise ValueError(f"plan: give --model ({', '.join(MODELS)}), or --parameters, --layers, --width and --heads")
    return Model(options.parameters, 0, options.layers, options.width, options.heads)


def _shown(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.{0 if unit == 'B' or count >= 99.95 else 1}f} {unit}"
        count /= 1000
    raise AssertionError


def report(options: argparse.Namespace) -> list[str]:
    model = _model_of(options)
    if options.ranks % options.hosts:
        raise ValueError(f"plan: {options.ranks} ranks are not the same number on each of {options.hosts} hosts")
    passing = activations(model, options.batch, options.sequence, options.recompute, options.precision)
    lines = [f"{model.parameters / 1e9:.2f} B parameters, {options.precision}, AdamW; {options.ranks} ranks on "
             f"{options.hosts} hosts",
             f"activations of a rank: {_shown(passing)} ({options.batch} x {options.sequence} tokens, recomputed: "
             f"{options.recompute})", "",
             f"{'bytes':<18}{'parameters':>12}{'gradients':>12}{'optimizer':>12}{'a rank':>12}{'a host':>12}"
             f"{'sent':>12}"]
    for way in WAYS:
        if options.compress and way == "stage 0":       # which does not: it is DDP's
            continue
        sizes = (options.ranks, options.hosts, options.precision)
        need = needs(model, way, *sizes)
        if options.compress:
            need = packed(need, model, way, *sizes, Packing(options.compress, options.share))
        rank = need.parameters + need.gradients + need.state + passing
        cells = (need.parameters, need.gradients, need.state, rank, rank * options.ranks / options.hosts, need.sent)
        lines.append(f"{way:<18}" + "".join(f"{_shown(cell):>12}" for cell in cells))
    if options.compress:
        lines[0] += f"; gradients travel as {options.compress}"
    return [*lines, "", "a rank, a host: with activations; stage 3: a host's one copy counts in part for each rank; "
                        "sent: by a host in a step"]


def _run(options: argparse.Namespace) -> int:
    print("\n".join(report(options)))
    return 0


def add_parser(commands: Any) -> None:
    plan = commands.add_parser(
        "plan", help="what training a model takes: memory and traffic by stage of ZeRO", allow_abbrev=False,
        description="Computes what a model takes on each rank, and what a host sends to others in a step, for "
                    "DistributedDataParallel and each stage of torch_tutti.zero.")
    plan.add_argument("--model", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    plan.add_argument("--parameters", type=_count, metavar="COUNT", help="of another model, such as 350M")
    for name, what in (("layers", "its layers"), ("width", "numbers for each token between them"),
                       ("heads", "of its attention")):
        plan.add_argument(f"--{name}", type=whole(1), metavar="COUNT", help=what)
    plan.add_argument("--ranks", type=whole(1), required=True, help="processes that train")
    for name, usual, what in (("hosts", 1, "machines that they are on, as many on each"),
                              ("batch", 1, "sequences of a rank in a pass"), ("sequence", 2048, "tokens of each")):
        plan.add_argument(f"--{name}", type=whole(1), default=usual, help=f"{what} (default: %(default)s)")
    plan.add_argument("--precision", choices=PRECISIONS, default="bf16",
                      help="of parameters and gradients; the optimizer keeps float32 (default: %(default)s)")
    plan.add_argument("--compress", choices=FORMS, help="gradients on their way, with error feedback")
    plan.add_argument("--share", type=_share, default=0.01, help="what topk and randomk keep (default: %(default)s)")
    plan.add_argument("--recompute", choices=("none", "selective", "full"), default="none",
                      help="activations that are computed again in the backward pass (default: %(default)s)")
    plan.set_defaults(run=_run)
