"""Computes the bytes that a device keeps: parameters, gradients and the optimizer's state, for each way of
torch_tutti.zero to divide them, and activations. docs/zero-reference.md and docs/planning.md have the formulas.

Activations: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4, for
16-bit activations of a GPT layer. Other models differ in the second half of a layer (Model.inner), and a little in
attention."""
from __future__ import annotations

from typing import NamedTuple

from torch_tutti._planning.models import Model

# {name: (bytes of a parameter and of its gradient, bytes that the optimizer keeps for it)}
PRECISIONS = {"bf16": (2, 12), "fp32": (4, 8)}
WAYS = ("DDP", "stage 0", "stage 1", "stage 2", "stage 3", "stage 3, sharded")
RECOMPUTED = ("none", "selective", "full")
# {form of torch_tutti.compression: bytes of a gradient in a message; with topk and randomk, of one that is kept}
FORMS = {"fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 128, "int4": 0.5 + 4 / 128, "topk": 8.0, "randomk": 4.0}


class Need(NamedTuple):
    """Bytes of a rank: parameters, gradients, and the optimizer's state; sent: bytes that a host sends to other hosts
    in a step."""
    parameters: float
    gradients: float
    state: float
    sent: float

    @property
    def kept(self) -> float:
        """All bytes that a rank keeps, without activations."""
        return self.parameters + self.gradients + self.state


class Packing(NamedTuple):
    """How gradients are compressed in messages (docs/compression.md). share: the share of gradients that topk and
    randomk keep."""
    form: str
    share: float = 0.01

    def number_bytes(self, sides: int = 1) -> float:
        """Returns the mean bytes of a gradient in a message. sides: the number of senders whose sum it is; topk keeps
        more of a sum."""
        if self.form == "topk":
            return FORMS["topk"] * min(1.0, self.share * min(sides, 4))
        return FORMS[self.form] * (self.share if self.form == "randomk" else 1)


def with_packing(need: Need, model: Model, way: str, ranks: int, hosts: int, precision: str, packing: Packing) -> Need:
    """Returns `need` for gradients that are compressed in messages, with float32 residuals (error feedback)."""
    count, across = model.parameters, (hosts - 1) / hosts
    uncompressed = across * PRECISIONS[precision][0] * count
    to_owner, from_owner = across * packing.number_bytes() * count, across * packing.number_bytes(hosts) * count
    sent = to_owner + from_owner if way == "DDP" else need.sent - uncompressed + to_owner
    ranks_that_sum = ranks // hosts if hosts > 1 else 1
    return need._replace(gradients=need.gradients + 4 * count / ranks_that_sum, sent=sent)


def needs(model: Model, way: str, ranks: int, hosts: int, precision: str) -> Need:
    """Returns the bytes that a rank keeps and that its host sends. way: one of WAYS."""
    value_bytes, state_bytes = PRECISIONS[precision]
    whole, outside_layers = value_bytes * model.parameters, value_bytes * model.own
    layer = (whole - outside_layers) / model.layers
    across = (hosts - 1) / hosts
    if way in ("DDP", "stage 0"):
        return Need(whole, whole, state_bytes * model.parameters, 2 * across * whole)
    state, summed = state_bytes * model.parameters / ranks, whole / ranks
    buffers = whole if way == "stage 1" else min(whole, 2 * layer + outside_layers)
    # parameters are gathered forward and again backward, except those that are still whole
    if way == "stage 3, sharded":
        return Need(summed + outside_layers + 2 * layer, buffers + summed, state,
                    across * (3 * whole - outside_layers - 2 * layer))
    copies = hosts if way == "stage 3" else ranks
    return Need(whole * copies / ranks, buffers + summed, state, 2 * across * whole)


def activations(model: Model, sequences: int, length: int, recompute: str, precision: str, tensor: int = 1,
                layers: int | None = None, held: float = 1) -> float:
    """Returns the bytes of a rank's activations. sequences: of a pass; length: tokens of each. tensor: how many ranks
    divide each layer and its sequence. layers: those of the rank; None: all. held: passes whose activations are kept at
    a time. recompute: "none", "selective" or "full", which keeps only the inputs of layers, and all activations of the
    one layer that is computed."""
    input_bytes = sequences * length * model.width * PRECISIONS[precision][0] / 2 / tensor
    layers = model.layers if layers is None else layers
    without_attention = input_bytes * (15 + model.inner)
    layer_bytes = without_attention + input_bytes * 5 * model.heads * length / model.width
    return {"none": held * layers * layer_bytes, "selective": held * layers * without_attention,
            "full": held * layers * input_bytes * 2 + layer_bytes}[recompute]
