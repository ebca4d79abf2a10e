"""Keyword arguments of a pipeline's stages, such as masks: each microbatch gets its rows of the tensors in them."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten


def _is_divided(value: Any) -> bool:
    """True for a tensor with a row for each row of the batch. A first dimension of 1 stands for all rows."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) != 1


def divided_tensors(keywords: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that cut_keywords() divides, also those in tuples, lists and dicts."""
    return [value for value in tree_leaves(keywords) if _is_divided(value)]


def cut_keywords(keywords: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Returns the keyword arguments of each of `count` microbatches. divided_tensors() are divided along dimension 0;
    all other values are the same objects in each microbatch."""
    values, structure = tree_flatten(keywords)
    parts = [value.tensor_split(count) if _is_divided(value) else [value] * count for value in values]
    return [tree_unflatten([part[index] for part in parts], structure) for index in range(count)]
