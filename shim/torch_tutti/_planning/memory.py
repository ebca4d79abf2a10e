"""Bytes that a device keeps: parameters, gradients and the optimizer's, divided in each of the ways that
torch_tutti.zero has, and activations. The formulas are those of docs/zero.md and docs/planning.md.

Activations: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4, for
16-bit activations of a GPT layer; the second half of other layers is as Model.inner says, attention differs a little.
"""
from __future__ import annotations

from typing import NamedTuple

from torch_tutti._planning.models import Model

PRECISIONS = {"bf16": (2, 12), "fp32": (4, 8)}          # bytes of a value and a gradient; of what the optimizer keeps
WAYS = ("DDP", "stage 0", "stage 1", "stage 2", "stage 3", "stage 3, sharded")
RECOMPUTED = ("none", "selective", "full")
# by form of torch_tutti.compression: bytes of a gradient on its way; topk, randomk: of one that is kept
FORMS = {"fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 128, "int4": 0.5 + 4 / 128, "topk": 8.0, "randomk": 4.0}


class Need(NamedTuple):
    """Bytes of a rank: parameters, gradients, the optimizer's; and those that a host sends to others in a step."""
    parameters: float
    gradients: float
    state: float
    sent: float

    @property
    def kept(self) -> float:
        return self.parameters + self.gradients + self.state


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


def activations(model: Model, sequences: int, length: int, recompute: str, precision: str, tensor: int = 1,
                layers: int | None = None, held: float = 1) -> float:
    """Bytes of a rank, which has so many whole layers, None: all, divided among `tensor` ranks with their sequence.
    held: passes whose activations it holds at a time. Recomputing keeps a layer's input, and those of one at work."""
    tokens = sequences * length * model.width * PRECISIONS[precision][0] / 2 / tensor
    layers = model.layers if layers is None else layers
    lasting = tokens * (15 + model.inner)
    layer = lasting + tokens * 5 * model.heads * length / model.width
    return {"none": held * layers * layer, "selective": held * layers * lasting,
            "full": held * layers * tokens * 2 + layer}[recompute]
