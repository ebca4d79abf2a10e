"""Chooses the experts of each token, and measures how evenly they are used."""
from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import group_of


def _at_least_float32(logits: Tensor) -> Tensor:
    """Returns logits of float64 as they are, others as float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def route(logits: Tensor, k: int, *, score: str = "softmax", bias: Tensor | None = None, normalise: bool = True,
          n_group: int | None = None, topk_group: int | None = None) -> tuple[Tensor, Tensor]:
    """Chooses for each token the k experts with the largest scores. logits: [tokens, experts]. Returns their weights,
    [tokens, k] of float32, or of float64 for logits of float64, and their numbers, int64 [tokens, k].

    score: "softmax" or "sigmoid" turns a token's logits into scores. bias: [experts], added to scores for the choice
    only, not in the weights (Balance). normalise: a token's weights sum to 1. n_group, topk_group: consecutive experts
    form n_group groups of equal size, and a token's experts lie in topk_group of them, as in DeepSeek-V3: in those with
    the largest sums of their two largest scores, with the bias. Raises ValueError for invalid arguments."""
    if logits.dim() != 2 or not 1 <= k <= logits.shape[1]:
        raise ValueError(f"route: {k} experts of each token, from logits of sizes {list(logits.shape)}: logits must be "
                         "[tokens, experts], and k 1 to experts")
    if score not in ("softmax", "sigmoid"):
        raise ValueError(f'route: score "{score}" is unknown: use "softmax" or "sigmoid"')
    exact = _at_least_float32(logits)
    scores = exact.softmax(-1) if score == "softmax" else exact.sigmoid()
    for_choice = scores if bias is None else scores + bias
    if n_group is not None or topk_group is not None:
        for_choice = _limit_to_groups(for_choice, k, n_group, topk_group)
    chosen = for_choice.topk(k).indices
    weights = scores.gather(-1, chosen)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights, chosen


def _limit_to_groups(scores: Tensor, k: int, n_group: int | None, topk_group: int | None) -> Tensor:
    """Returns scores, [tokens, experts], with -inf outside of each token's topk_group best groups, without gradients.
    Raises ValueError if the groups do not fit the experts and k."""
    experts = scores.shape[1]
    if n_group is None or topk_group is None:
        raise ValueError("route: n_group and topk_group are given together, or neither")
    if n_group < 1 or experts % n_group or not 1 <= topk_group <= n_group or k > topk_group * (experts // n_group):
        raise ValueError(f"route: n_group {n_group}, topk_group {topk_group}, for {k} of {experts} experts of a token: "
                         "the experts must be a multiple of n_group, topk_group 1 to n_group, and k at most the "
                         "experts of topk_group groups")
    grouped = scores.detach().unflatten(1, (n_group, experts // n_group))
    best = grouped.topk(min(2, experts // n_group)).values.sum(-1).topk(topk_group).indices
    is_allowed = torch.zeros(len(scores), n_group, dtype=torch.bool, device=scores.device).scatter_(1, best, True)
    return grouped.masked_fill(~is_allowed[:, :, None], float("-inf")).flatten(1)


def z_loss(logits: Tensor) -> Tensor:
    """Returns the router's z-loss of ST-MoE (Zoph et al. 2022), which keeps logits small: the mean over this rank's
    tokens of the squared logarithm of the sum of exp(logits), or 0 without tokens. logits: [tokens, experts]. If all
    ranks have the same number of tokens, the gradients averaged over ranks are those of the whole batch. Raises
    ValueError for another shape."""
    if logits.dim() != 2:
        raise ValueError(f"z_loss: logits are {list(logits.shape)}; they must be [tokens, experts]")
    return _at_least_float32(logits).logsumexp(-1).square().sum() / max(len(logits), 1)


def counts_of(chosen: Tensor, experts: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns how many choices of all ranks' tokens fall on each expert: int64 [experts]. Collective."""
    counts = torch.bincount(chosen[chosen >= 0].flatten(), minlength=experts)
    dist.all_reduce(counts, group=group_of("experts", group))
    return counts


def balance_loss(logits: Tensor, chosen: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns the load-balancing loss of Switch Transformers (Fedus et al. 2021): the number of experts times the sum
    over experts of (share of all choices * mean softmax score). It is 1 if both are even. Shares are of all ranks'
    tokens, means of this rank's. So if all ranks have the same number of tokens, the gradients averaged over ranks are
    those of the whole batch. Collective."""
    experts = logits.shape[1]
    counts = counts_of(chosen, experts, group)
    exact = _at_least_float32(logits)
    share = counts.to(exact.dtype) / counts.sum().clamp_min(1)
    return experts * (share * exact.softmax(-1).mean(0)).sum()


class Balance(torch.nn.Module):
    """Balances experts by a bias, without a loss (Wang et al. 2024, as in DeepSeek-V3). route() adds the bias to scores
    for the choice. After a step, update() raises it by `rate` for experts with fewer tokens than the mean, and lowers
    it by `rate` for experts with more."""

    bias: Tensor

    def __init__(self, experts: int, rate: float = 1e-3) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("bias", torch.zeros(experts))

    @torch.no_grad()
    def update(self, chosen: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        """Updates the bias after a step. chosen: this rank's, as route() returns it. Returns the tokens of each expert
        on all ranks, int64 [experts]. Collective."""
        counts = counts_of(chosen, len(self.bias), group)
        self.bias += self.rate * (counts.float().mean() - counts).sign()
        return counts


class Imbalance(NamedTuple):
    """How uneven the use of experts is. most: tokens of the busiest expert, divided by the mean. busiest: the number of
    that expert. empty: experts without a token. deviation: the standard deviation of tokens, divided by the mean."""
    most: float
    busiest: int
    empty: int
    deviation: float


def imbalance(counts: Tensor) -> Imbalance:
    """Measures how uneven counts are: [experts], tokens of each expert, as Balance.update() or batch.by_rank.sum(0)
    returns them."""
    mean = max(counts.float().mean().item(), 1e-9)
    return Imbalance(counts.max().item() / mean, int(counts.argmax()), int((counts == 0).sum()),
                     counts.float().std(correction=0).item() / mean)
