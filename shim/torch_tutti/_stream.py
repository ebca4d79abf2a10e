"""The stream on which a group runs asynchronous operations. Importing this module imports torch.distributed."""
from __future__ import annotations

import torch
import torch.distributed as dist

from torch_tutti._extension import backend_of


def stream(group: dist.ProcessGroup | None = None, device: torch.device | str | int | None = None) -> (
        torch.cuda.Stream | None):
    """Returns the CUDA stream on which the group runs asynchronous operations with tensors of the device.

    group: None is the default group. device: a CUDA device; None is the current one. A group has one stream, on the
    device of its first operation. Returns None if CUDA tensors of the group go through the host. Before the first
    operation with a CUDA tensor that is not known yet, and the stream may stay unused. Raises ValueError for a group of
    another backend, and for a device that is no CUDA device. Local.
    """
    place = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    if place.type != "cuda":
        raise ValueError(f"stream: {place} is no CUDA device")
    if place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    backend = backend_of(dist.group.WORLD if group is None else group, place)
    if backend is None:
        raise ValueError("stream: the group has no tutti backend for CUDA tensors")
    own = backend._stream(place)
    return own and torch.cuda.Stream(stream_id=own.stream_id, device_index=own.device_index,
                                     device_type=own.device_type)
