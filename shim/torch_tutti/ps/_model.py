"""The model as servers and workers see it: its tensors, their descriptions, and its slices."""
from __future__ import annotations

from typing import Iterator

from torch import Tensor, nn

from torch_tutti.ps._slices import Slice, cut, spread

MODES = ("sync", "async", "bounded")


def largest_lag(mode: str, staleness: int | None) -> int | None:
    """Returns how many pushes of another worker the parameters of a worker may lack; None: any number."""
    return {"sync": 0, "async": None, "bounded": staleness}[mode]


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Returns (name, parameter) of each parameter that is trained."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) of all parameters and buffers."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def untrained(model: nn.Module) -> list[Tensor]:
    """Returns the parameters that are not trained, and the buffers."""
    return [tensor for _, tensor in tensors(model) if not tensor.requires_grad]


def describe_tensors(model: nn.Module) -> list[str]:
    """Returns a text for each parameter and buffer of the model. They must be equal on all ranks."""
    return [f"{name} of shape {tuple(tensor.shape)}, {tensor.dtype}{'' if tensor.requires_grad else ', not trained'}"
            for name, tensor in tensors(model)]


def divide_model(model: nn.Module, size: int, servers: int, mode: str, staleness: int | None, slice_bytes: int,
                  whole_parameters: bool) -> list[Slice]:
    """Checks the arguments of join(), and divides the model's parameters into slices, each with its server. size: the
    ranks of the run at its beginning."""
    if not isinstance(servers, int) or not 0 < servers < size:
        raise ValueError(f"ps: servers={servers!r} of {size} ranks; "
                         "one or more must be servers, and one or more workers")
    if mode not in MODES:
        raise ValueError(f"ps: mode={mode!r}; the modes are {', '.join(MODES)}")
    if (mode == "bounded") != (staleness is not None):
        raise ValueError(f"ps: staleness={staleness!r} with mode={mode!r}; only mode=\"bounded\" takes it")
    if mode == "bounded" and (not isinstance(staleness, int) or staleness < 0):
        raise ValueError(f"ps: staleness={staleness!r}; it must be a number of pushes, 0 or more")
    if not isinstance(slice_bytes, int) or slice_bytes < 1:
        raise ValueError(f"ps: slice_bytes={slice_bytes!r}; it must be a number of bytes, 1 or more")
    parameters = trained(model)
    for name, parameter in parameters:
        if parameter.device.type != "cpu" or not parameter.is_floating_point() or not parameter.is_contiguous():
            raise ValueError(f"ps: {name} is {parameter.dtype} on {parameter.device}, "
                             f"{'' if parameter.is_contiguous() else 'not '}contiguous; trained parameters must be "
                             "contiguous floating-point tensors on the CPU")
    slices = cut([parameter for _, parameter in parameters], slice_bytes, whole_parameters)
    if not slices:
        raise ValueError("ps: the model has no parameters to train")
    if len(slices) < servers:
        raise ValueError(f"ps: servers={servers}, and the model is {len(slices)} slices of slice_bytes={slice_bytes}: "
                         "take fewer servers, or smaller slices")
    spread(slices, servers)
    return slices
