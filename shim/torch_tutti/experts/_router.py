"""Which experts a token chooses, and how even that is."""
from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import group_of


def route(logits: Tensor, k: int, *, score: str = "softmax", bias: Tensor | None = None,
          normalise: bool = True) -> tuple[Tensor, Tensor]:
    """logits: [tokens, experts]. Of each token the k experts of the largest scores, [tokens, k]: their weights, in
    float32, and their numbers, int64.

    score: "softmax" or "sigmoid", of each token. bias: [experts], is added to scores where experts are chosen, and not
    to weights (Balance). normalise: a token's weights sum to 1. ValueError for what cannot be.
    """
    if logits.dim() != 2 or not 1 <= k <= logits.shape[1]:
        raise ValueError(f"route: {k} experts of each token, from logits of sizes {list(logits.shape)}: logits must be "
                         "[tokens, experts], and k 1 to experts")
    if score not in ("softmax", "sigmoid"):
        raise ValueError(f'route: score "{score}" is unknown: use "softmax" or "sigmoid"')
    scores = logits.float().softmax(-1) if score == "softmax" else logits.float().sigmoid()
    chosen = (scores if bias is None else scores + bias).topk(k).indices
    weights = scores.gather(-1, chosen)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights, chosen


def counts_of(chosen: Tensor, experts: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """How many tokens of all ranks choose each expert: int64 [experts]. Collective."""
    counts = torch.bincount(chosen[chosen >= 0].flatten(), minlength=experts)
    dist.all_reduce(counts, group=group_of("experts", group))
    return counts


def balance_loss(logits: Tensor, chosen: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The load-balancing loss of Switch Transformers (Fedus et al. 2021): experts * sum over them of the share of
    choices they get * the mean of their softmax scores; 1 where both are even. Shares are those of all ranks of the
    group, the mean is of this rank's tokens, so gradients that are averaged over ranks are those of the whole batch if
    all ranks have as many tokens. Collective."""
    experts = logits.shape[1]
    counts = counts_of(chosen, experts, group)
    share = counts / counts.sum().clamp_min(1)
    return experts * (share * logits.float().softmax(-1).mean(0)).sum()


class Balance(torch.nn.Module):
    """A bias for each expert, which route() adds to scores where experts are chosen: raised by `rate` after a step for
    who had less than the mean, lowered for who had more (Wang et al. 2024, as in DeepSeek-V3), with no loss to pay."""

    bias: Tensor

    def __init__(self, experts: int, rate: float = 1e-3) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("bias", torch.zeros(experts))

    @torch.no_grad()
    def update(self, chosen: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """After a step, with what its tokens have chosen: the counts. Collective, and the same on all ranks."""
        counts = counts_of(chosen, len(self.bias), group)
        self.bias += self.rate * (counts.float().mean() - counts).sign()
        return counts


class Imbalance(NamedTuple):
    """most: what the busiest expert has, by the mean. busiest: its number. empty: experts without a token. deviation:
    the standard deviation, by the mean."""
    most: float
    busiest: int
    empty: int
    deviation: float


def imbalance(counts: Tensor) -> Imbalance:
    """counts: [experts], as of Balance.update() or batch.by_rank.sum(0)."""
    mean = max(counts.float().mean().item(), 1e-9)
    return Imbalance(counts.max().item() / mean, int(counts.argmax()), int((counts == 0).sum()),
                     counts.float().std(correction=0).item() / mean)
