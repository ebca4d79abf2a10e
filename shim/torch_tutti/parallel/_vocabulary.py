"""The ends of a language model, which are divided along the vocabulary: an embedding of which each rank has some rows,
and the loss of logits of which each rank has some columns, that are never put together (Shoeybi et al. 2019)."""
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


def check(fine: Tensor, said: Callable[[], str], count: int) -> None:
    """Raises IndexError where it is not. In a graph, and where the host would have to wait for a device, torch's own
    assertion does, a RuntimeError."""
    if torch.compiler.is_compiling() or not fine.is_cpu:
        torch._assert_async(fine, f"parallel: a token or target is out of range; allowed are 0 to {count - 1}")
    elif not fine:
        raise IndexError(f"{said()}; allowed are 0 to {count - 1}")


class VocabularyEmbedding(Divided):
    """nn.Embedding of which each rank has some rows: weight [embeddings / ranks, width]. Embeddings that do not divide
    get more rows, of zeros, that nobody reads.

    forward(ids): [..] to [.., width] on each rank. sequence: to a piece, [.., length / ranks, .., width], of dimension
    `dim`. Raises IndexError for an id that is out of range, on all ranks, as all have the same ids; ValueError where
    the sequence cannot be divided.

    First values are those of nn.Embedding for the state of the generator, the same on all ranks.
    """
    divided: ClassVar[dict[str, int]] = {"weight": 0}

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 group: dist.ProcessGroup | None = None, *, sequence: bool = False, dim: int = -2, device: Any = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sequence, self.dim = sequence, dim
        whole = nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.padding_idx = whole.padding_idx                    # from 0
        self.take(whole)

    @classmethod
    def of(cls, embedding: nn.Embedding, group: dist.ProcessGroup | None = None, **options: Any) -> VocabularyEmbedding:
        """This rank's part of one that all ranks have with the same values; a copy. options: as of the class."""
        if not isinstance(embedding, nn.Embedding):
            raise ValueError(f"parallel: {cls.__name__}.of takes an nn.Embedding, not {type(embedding).__name__}")
        if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
            raise ValueError("parallel: an embedding with max_norm, scale_grad_by_freq or sparse cannot be divided")
        made = cls(embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx, group, device="meta",
                   **options)
        made.take(embedding)
        return made

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.num_embeddings, self.embedding_dim)}

    def like(self, **options: Any) -> nn.Module:
        return nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, **options)

    def forward(self, ids: Tensor) -> Tensor:
        ranks, rows = self.ranks, self.weight.size(0)
        wrong = (ids < 0) | (ids >= self.num_embeddings)
        check(~wrong.any(), lambda: f"parallel: token {ids[wrong][0].item()} on rank {ranks.rank}", self.num_embeddings)
        if self.sequence:
            share("a sequence", ids.size(sequence_dim(self.dim, ids.unsqueeze(-1))), ranks)
        here = ids - rows * ranks.rank
        elsewhere = (here < 0) | (here >= rows)
        padding = None if self.padding_idx is None else self.padding_idx - rows * ranks.rank
        padding = padding if padding is not None and 0 <= padding < rows else None
        found = F.embedding(here.masked_fill(elsewhere, 0), self.weight, padding)
        found = found.masked_fill(elsewhere.unsqueeze(-1), 0)
        return over(found, "reduce_scatter" if self.sequence else "reduce", ranks, self.dim)

    def extra_repr(self) -> str:
        return (f"{self.num_embeddings}, {self.embedding_dim}, sequence={self.sequence}, rank {self.ranks.rank} of "
                f"{self.ranks.size}")


class _CrossEntropy(Function):
    """Losses [n] of tokens from a rank's logits [n, classes / ranks], in two all-reduces: the largest of the ranks'
    logarithms of sums of exponentials; then, relative to it, so that nothing overflows, the sums themselves, the logit
    of the target, which one rank has, and, for smoothing, the mean of all. Back: softmax less target, of this rank's
    classes; nothing is sent."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, smoothing: float, classes: int,
                ranks: Ranks) -> Tensor:
        numbers, first = wide(logits), logits.size(1) * ranks.rank
        ctx.valid, ctx.smoothing, ctx.classes = max(0, min(logits.size(1), classes - first)), smoothing, classes
        ignored = target == ignore_index
        here = (target >= first) & (target < first + ctx.valid) & ~ignored
        index = torch.where(here, target - first, 0).unsqueeze(1)
        local = numbers.logsumexp(1)
        largest = largest_of(local, target, ~ignored & ((target < 0) | (target >= classes)), classes, ranks)
        terms = [(local - largest).exp(), (numbers.gather(1, index).squeeze(1) - largest).masked_fill(~here, 0)]
        if smoothing:
            terms.append((numbers[:, :ctx.valid] - largest.unsqueeze(1)).sum(1) / classes)
        whole = over(torch.stack(terms), "reduce", ranks)
        loss = whole[0].log() - (1 - smoothing) * whole[1]
        if smoothing:
            loss = loss - smoothing * whole[2]
        ctx.save_for_backward(logits, index, here, ignored, largest + whole[0].log())
        return loss.masked_fill(ignored, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        logits, index, here, ignored, log_of_sum = ctx.saved_tensors
        gradient = gradient.masked_fill(ignored, 0).unsqueeze(1)
        found = (wide(logits) - log_of_sum.unsqueeze(1)).exp() * gradient
        if ctx.smoothing:
            found[:, :ctx.valid] -= ctx.smoothing / ctx.classes * gradient
        found = found.scatter_add(1, index, (ctx.smoothing - 1) * gradient * here.unsqueeze(1))
        return found.to(logits.dtype), None, None, None, None, None


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def largest_of(x: Tensor, target: Tensor, wrong: Tensor, classes: int, ranks: Ranks) -> Tensor:
    """Over the ranks, for each token. Beside them goes who has a target that is wrong, so that all raise."""
    who = wrong.any().to(x.dtype).view(1) * (ranks.rank + 1)
    # not torch.cat, into which inductor (2.13) puts x itself, and then takes the sum in its place
    sent = F.pad(x, (0, 1)) + F.pad(who, (x.size(0), 0))
    found = sent if ranks.size == 1 else finish(_calls.all_reduce(sent, "max", ranks.name))

    def said() -> str:
        if wrong.any():
            return f"parallel: target {target[wrong][0].item()} on rank {ranks.rank}"
        return f"parallel: a target of rank {int(found[-1]) - 1} is wrong"
    check(found[-1] == 0, said, classes)
    return found[:-1]


def cross_entropy(logits: Tensor, target: Tensor, group: dist.ProcessGroup | None = None, *, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0, classes: int | None = None) -> Tensor:
    """F.cross_entropy of logits of which each rank has some classes: logits [.., classes / ranks], in the order of the
    ranks, target [..], of all classes, the same on all ranks; so is the loss, in float32 (float64 for such logits).

    ignore_index, reduction ("mean", "sum", "none"), label_smoothing: as of F.cross_entropy. classes: how many there
    are, where the last ones are padding. Raises ValueError for shapes and settings that are wrong, and
    IndexError, on all ranks, where one has a target that is no class.
    """
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
