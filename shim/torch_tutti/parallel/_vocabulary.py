"""The two ends of a language model, divided along the vocabulary: an embedding whose rows are divided among the ranks,
and the loss of logits whose columns are divided and never gathered (Shoeybi et al. 2019)."""
from __future__ import annotations

from typing import Any, Callable, ClassVar

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from torch_tutti.parallel._collectives import Ranks, finish, over, ranks_of, share
from torch_tutti.parallel._layers import Divided, sequence_dim

__all__ = ["VocabularyEmbedding", "cross_entropy"]
_calls = torch.ops._c10d_functional


def check(is_valid: Tensor, make_message: Callable[[], str], count: int) -> None:
    """Raises IndexError with make_message() if is_valid, a tensor of one bool, is False. In a graph and on a device,
    where the host would have to wait, torch's own assertion raises RuntimeError instead. count: valid numbers are 0 to
    count - 1."""
    if torch.compiler.is_compiling() or not is_valid.is_cpu:
        torch._assert_async(is_valid, f"parallel: a token or target is out of range; allowed are 0 to {count - 1}")
    elif not is_valid:
        raise IndexError(f"{make_message()}; allowed are 0 to {count - 1}")


class VocabularyEmbedding(Divided):
    """nn.Embedding whose rows are divided among the ranks: weight [embeddings / ranks, width]. If they cannot be
    divided evenly, zeros are added that no lookup reads.

    forward(ids): [..] to [.., width] on each rank. All ranks pass the same ids. sequence: returns this rank's piece,
    [.., length / ranks, .., width], along dimension `dim`. Raises IndexError on all ranks for an id that is out of
    range, and ValueError if the sequence cannot be divided.

    Initial values are those of nn.Embedding for the state of the random generator, which must be the same on all
    ranks."""
    divided: ClassVar[dict[str, int]] = {"weight": 0}

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 group: dist.ProcessGroup | None = None, *, sequence: bool = False, dim: int = -2, device: Any = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sequence, self.dim = sequence, dim
        whole = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.padding_idx = whole.padding_idx                    # counted from 0, or None
        self.take(whole)

    @classmethod
    def of(cls, embedding: nn.Embedding, group: dist.ProcessGroup | None = None, **options: Any) -> VocabularyEmbedding:
        """Returns this rank's part of an embedding that has the same values on all ranks, as a copy. options: those of
        the class."""
        if not isinstance(embedding, nn.Embedding):
            raise ValueError(f"parallel: {cls.__name__}.of takes an nn.Embedding, not {type(embedding).__name__}")
        if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
            raise ValueError("parallel: an embedding with max_norm, scale_grad_by_freq or sparse cannot be divided")
        result = cls(embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx, group, device="meta",
                     **options)
        result.take(embedding)
        return result

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.num_embeddings, self.embedding_dim)}

    def like(self, **options: Any) -> nn.Module:
        return nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, **options)

    def forward(self, ids: Tensor) -> Tensor:
        """Looks up the ids that are in this rank's rows, with zeros for others, and sums over the ranks; see the
        class."""
        ranks, rows = self.ranks, self.weight.size(0)
        wrong = (ids < 0) | (ids >= self.num_embeddings)
        check(~wrong.any(), lambda: f"parallel: token {ids[wrong][0].item()} on rank {ranks.rank}", self.num_embeddings)
        if self.sequence:
            share("a sequence", ids.size(sequence_dim(self.dim, ids.unsqueeze(-1))), ranks)
        row_of_id = ids - rows * ranks.rank
        elsewhere = (row_of_id < 0) | (row_of_id >= rows)
        padding = None if self.padding_idx is None else self.padding_idx - rows * ranks.rank
        padding = padding if padding is not None and 0 <= padding < rows else None
        found = F.embedding(row_of_id.masked_fill(elsewhere, 0), self.weight, padding)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        return over(found, "reduce_scatter" if self.sequence else "reduce", ranks, self.dim)

    def extra_repr(self) -> str:
        return (f"{self.num_embeddings}, {self.embedding_dim}, sequence={self.sequence}, rank {self.ranks.rank} of "
                f"{self.ranks.size}")


class _CrossEntropy(Function):
    """The autograd function of cross_entropy(): losses [n] of tokens from a rank's logits [n, classes / ranks], in two
    all-reduces. The first finds the largest of the ranks' logarithms of sums of exponentials. The second sums, relative
    to it so that nothing overflows, the sums themselves, the logit of the target, which one rank has, and with
    smoothing the mean of all logits. backward() is softmax minus target for this rank's classes, and sends nothing."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, classes: int,
                ranks: Ranks) -> Tensor:
        """Returns the losses [n]; 0 where the target is ignore_index. classes: without padding."""
        values, first = to_float(logits), logits.size(1) * ranks.rank
        ctx.valid, ctx.smoothing, ctx.classes = max(0, min(logits.size(1), classes - first)), smoothing, classes
        ignored = target == ignore_index
        has_target = (target >= first) & (target < first + ctx.valid) & ~ignored
        target_index = torch.where(has_target, target - first, 0).unsqueeze(1)
        local = values.logsumexp(1)
        largest = largest_of(local, target, ~ignored & ((target < 0) | (target >= classes)), classes, ranks)
        summands = [(local - largest).exp(),
                    (values.gather(1, target_index).squeeze(1) - largest).masked_fill(~has_target, 0)]
        if smoothing:
            summands.append((values[:, :ctx.valid] - largest.unsqueeze(1)).sum(1) / classes)
        whole = over(torch.stack(summands), "reduce", ranks)
        loss = whole[0].log() - (1 - smoothing) * whole[1]
        if smoothing:
            loss = loss - smoothing * whole[2]
        ctx.save_for_backward(logits, target_index, has_target, ignored, largest + whole[0].log())
        return loss.masked_fill(ignored, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Returns the gradient of this rank's logits."""
        logits, target_index, has_target, ignored, log_of_sum = ctx.saved_tensors
        gradient = gradient.masked_fill(ignored, 0).unsqueeze(1)
        result = (to_float(logits) - log_of_sum.unsqueeze(1)).exp() * gradient
        if ctx.smoothing:
            result[:, :ctx.valid] -= ctx.smoothing / ctx.classes * gradient
        result = result.scatter_add(1, target_index, (ctx.smoothing - 1) * gradient * has_target.unsqueeze(1))
        return result.to(logits.dtype), None, None, None, None, None


def to_float(x: Tensor) -> Tensor:
    """Returns x in float32, or as it is if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def largest_of(x: Tensor, target: Tensor, wrong: Tensor, classes: int, ranks: Ranks) -> Tensor:
    """Returns the largest value over the ranks for each token, x [n]. wrong: bool [n], tokens whose target is no class.
    Sends with x whether this rank has one, so that all ranks raise IndexError."""
    wrong_rank = wrong.any().to(x.dtype).view(1) * (ranks.rank + 1)
    # not torch.cat: inductor (2.13) would put x itself into it, and then reduce in place
    both = F.pad(x, (0, 1)) + F.pad(wrong_rank, (x.size(0), 0))
    found = both if ranks.size == 1 else finish(_calls.all_reduce(both, "max", ranks.name))

    def make_message() -> str:
        if wrong.any():
            return f"parallel: target {target[wrong][0].item()} on rank {ranks.rank}"
        return f"parallel: a target of rank {int(found[-1]) - 1} is wrong"
    check(found[-1] == 0, make_message, classes)
    return found[:-1]


def cross_entropy(logits: Tensor, target: Tensor, group: dist.ProcessGroup | None = None, *, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0, classes: int | None = None) -> Tensor:
    """Returns F.cross_entropy of logits whose classes are divided among the ranks: logits [.., classes / ranks], in the
    order of the ranks; target [..], of all classes, the same on all ranks. The loss is the same on all ranks, in
    float32, or float64 for such logits.

    ignore_index, reduction ("mean", "sum", "none"), label_smoothing: as in F.cross_entropy. classes: how many there
    are, if the last columns are padding. Raises ValueError for invalid shapes and settings, and IndexError on all ranks
    if one has a target that is no class."""
    ranks = ranks_of(group)
    count = logits.size(-1) * ranks.size
    if logits.shape[:-1] != target.shape or target.is_floating_point():
        raise ValueError(f"parallel: logits {tuple(logits.shape)} with a target {tuple(target.shape)} of "
                         f"{target.dtype}; the target must be integers of the logits' shape without its last "
                         "dimension")
    if reduction not in ("mean", "sum", "none") or not 0 <= label_smoothing <= 1:
        raise ValueError(f"parallel: reduction={reduction!r}, label_smoothing={label_smoothing}; allowed are mean, "
                         "sum and none, and a smoothing from 0 to 1")
    if classes is not None and not 0 < classes <= count:
        raise ValueError(f"parallel: classes={classes}, but the logits of {ranks.size} ranks are {count}")
    loss = _CrossEntropy.apply(logits.reshape(-1, logits.size(-1)), target.reshape(-1).long(), ignore_index,
                               label_smoothing, count if classes is None else classes, ranks)
    if reduction == "none":
        return loss.view(target.shape)
    return loss.sum() if reduction == "sum" else loss.sum() / (target != ignore_index).sum()
