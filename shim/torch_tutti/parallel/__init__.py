"""Tensor and sequence parallelism: each rank of a group has a part of a layer's parameters, on any backend of torch.

    group = grid.group("tp")
    up, down = ColumnLinear.of(up, group), RowLinear.of(down, group)       # of layers that are equal on all ranks
    y = down(gelu(up(x)))                                                  # one sum forward, and one backward
"""
from torch_tutti.parallel._collectives import copy, gather, reduce, reduce_scatter, split
from torch_tutti.parallel._linear import ColumnLinear, RowLinear
from torch_tutti.parallel._state import clip_grad_norm_, full_state, load_full_state, sum_gradients
from torch_tutti.parallel._vocabulary import VocabularyEmbedding, cross_entropy

# without copy, so that `import *` does not replace the module copy of a program
__all__ = ["ColumnLinear", "RowLinear", "VocabularyEmbedding", "clip_grad_norm_", "cross_entropy", "full_state",
           "gather", "load_full_state", "reduce", "reduce_scatter", "split", "sum_gradients"]
