"""Predicted times for programs."""
from __future__ import annotations

from torch.distributed import ProcessGroup

from torch_tutti._calls import tutti_group_of
from torch_tutti._extension import backend_of
from torch_tutti._model import _core
from torch_tutti._model.options import CORE_NAMES

_NAMES = {**CORE_NAMES, "all_to_all": "all_to_all", "barrier": "barrier"}


def predict(op: str, bytes: int, group: ProcessGroup | None = None) -> float:
    """Returns the time in seconds that the cost model predicts for a collective, with the algorithm that the group
    would choose now. Runs nothing: any rank may call it alone, and all ranks get the same. It is the C core's part of a
    call on ordinary tensors. Returns 0.0 where the model has no time: for a barrier, and in a group of one rank.

    op: "all_reduce", "all_gather" and so on, without the suffixes of torch's other forms. bytes: the size of a rank's
    larger buffer, which in an all_gather is the output and in a reduce_scatter the input. group: of the backend tutti;
    None: the default group.
    Waits while another thread is in a blocking call of the group. Raises ValueError for an unknown name, a size that is
    negative or above 2**62, and a group of another backend.
    """
    if op not in _NAMES:
        raise ValueError(f"predict: {op!r} is no collective that has a prediction; these have one: {', '.join(_NAMES)}")
    if not 0 <= bytes <= 1 << 62:
        raise ValueError(f"predict: a size of {bytes} bytes is negative or too large")
    backend = backend_of(tutti_group_of("predict", group))
    return _core.predict(backend, _NAMES[op], "", bytes)["ns"] / 1e9
