"""Messages between pipeline stages on different ranks: activations forward, their gradients backward.

Each boundary between two stages has its own tags, one for each direction, so that messages of different stages between
the same two ranks stay apart. Shapes are not known in advance. Both ends of a boundary keep for each microbatch the
*signature* of the last step: shapes, dtypes, and which tensors need gradients. The receiver posts receives for this
expected signature. The sender first sends one number: 0 if the signature is as expected, else the length of a new
description. Then it sends tensors of the expected signature (zeros if it has changed, because receives wait for them).
A changed signature and its tensors follow on a third tag, on which no receive is posted before the number has arrived.
In the first step the expected signature is empty. The signature of gradients is that of the activations.
"""
from __future__ import annotations

import contextlib
from typing import Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti.exceptions import Error

_FIRST_TAG = 1 << 24                    # programs use lower tags
_ACTIVATION, _GRADIENT, _NEW = range(3)
# The code of a dtype in a description is its index here. Versions of torch differ in dtypes, so new ones come last.
_DTYPES = tuple(getattr(torch, name, None) for name in (
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"))


class Part(NamedTuple):
    """One tensor of a signature. trained: it needs a gradient, which is sent back."""
    dtype: torch.dtype
    trained: bool
    shape: tuple[int, ...]


Signature = tuple[Part, ...]


def signature_of(tensors: Sequence[Tensor]) -> Signature:
    """Returns the dtype, the need of a gradient and the shape of each tensor."""
    return tuple(Part(tensor.dtype, tensor.requires_grad, tuple(tensor.shape)) for tensor in tensors)


def _code_of(dtype: torch.dtype) -> int:
    """Returns the number of a dtype in descriptions. Raises ValueError for a dtype that has none."""
    if dtype not in _DTYPES:
        raise ValueError(f"pipeline: activations of {dtype} cannot be sent; convert them to one of "
                         f"{', '.join(str(known) for known in _DTYPES if known is not None)}")
    return _DTYPES.index(dtype)


def _encode(signature: Signature) -> list[int]:
    """Returns the description of a signature: for each tensor dtype code, trained, number of dimensions, sizes."""
    return [number for part in signature for number in
            (_code_of(part.dtype), part.trained, len(part.shape), *part.shape)]


def _decode(numbers: Sequence[int]) -> Signature:
    """Returns the signature of a description. Raises ValueError if the description is invalid."""
    parts, offset = [], 0
    while offset < len(numbers):
        code, trained, dimensions = (*numbers[offset:offset + 3], -1, -1)[:3]
        shape = tuple(numbers[offset + 3:offset + 3 + dimensions])
        dtype = _DTYPES[code] if 0 <= code < len(_DTYPES) else None
        if dtype is None or len(shape) != dimensions or min(shape, default=0) < 0:
            raise ValueError(f"pipeline: a stage has sent a description that this one cannot read ({list(numbers)}); "
                             "all ranks must have the same version of tutti, and torch with the same element types")
        parts.append(Part(dtype, bool(trained), shape))
        offset += 3 + dimensions
    return tuple(parts)


class PostedReceives(NamedTuple):
    """The posted receives of one microbatch, and the tensors that they fill. number: receives the length of a new
    description, or 0; None for gradients, which have no such message."""
    works: list[dist.Work]
    tensors: list[Tensor]
    number: Tensor | None


class Messages:
    """Sends and receives at all boundaries of this rank's stages. where: the running action, for error texts."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.where = group, ""
        # Sends that have not been waited for: (work, its tensor, description for error texts).
        self._sends: list[tuple[dist.Work, Tensor, str]] = []
        # The signature of the last activation, by (training, sending stage, microbatch).
        self._last: dict[tuple[bool, int, int], Signature] = {}

    @contextlib.contextmanager
    def context(self, what: str) -> Iterator[None]:
        """A block whose errors get the running action and `what` in their text, and keep their class."""
        try:
            yield
        except Error as error:
            raise type(error)(f"pipeline: {self.where}: {what}: {error}") from error

    def _tag(self, stage: int, kind: int) -> int:
        """Returns the tag of messages of a kind (_ACTIVATION, _GRADIENT, _NEW) from a stage."""
        return _FIRST_TAG + 3 * stage + kind

    # ---- sending: never blocks; tensors are kept until they are sent ----
    def _send(self, tensors: Sequence[Tensor], peer: int, tag: int, what: str) -> None:
        """Starts to send tensors to the rank `peer`, one message each, and keeps them until they are sent. what: their
        description for error texts."""
        for tensor in tensors:
            contiguous = tensor.contiguous()
            with self.context(f"sends {what} to rank {peer}"):
                self._sends.append((self.group.send([contiguous], peer, tag), contiguous, f"{what} to rank {peer}"))

    def send_activation(self, key: tuple[bool, int, int], peer: int, tensors: Sequence[Tensor]) -> None:
        """Sends the length of a new description, or 0, and a stage's outputs. If their signature is not the expected
        one, sends zeros of the expected signature in their place, then the description and the outputs on the third
        tag. key: (training, sending stage, microbatch)."""
        what, signature, expected = f"the activation of stage {key[1]}", signature_of(tensors), self._last.get(key, ())
        description = [] if signature == expected else _encode(signature)
        values = [tensor.detach() for tensor in tensors]
        expected_tensors = (values if signature == expected else
                            [torch.zeros(part.shape, dtype=part.dtype) for part in expected])
        self._send([torch.tensor([len(description)]), *expected_tensors], peer, self._tag(key[1], _ACTIVATION), what)
        if description:
            self._send([torch.tensor(description), *values], peer, self._tag(key[1], _NEW), what)
        self._last[key] = signature

    def send_gradient(self, stage: int, peer: int, tensors: Sequence[Tensor]) -> None:
        """Sends the gradients of the inputs of `stage` to the rank of the stage before it."""
        self._send(tensors, peer, self._tag(stage, _GRADIENT), f"the gradient of stage {stage}")

    def reap(self, waits_for_all: bool = False) -> None:
        """Releases the tensors of completed sends. waits_for_all: first waits until all sends have completed."""
        remaining = []
        for entry in self._sends:
            with self.context(f"has sent {entry[2]}"):
                if waits_for_all or entry[0].is_completed():
                    entry[0].wait()
                else:
                    remaining.append(entry)
        self._sends = remaining

    # ---- receiving ----
    def _post(self, signature: Signature, peer: int, tag: int, device: torch.device) -> PostedReceives:
        """Posts a receive from `peer` for each tensor of a signature, into new tensors on the device."""
        tensors = [torch.empty(part.shape, dtype=part.dtype, device=device) for part in signature]
        return PostedReceives([self.group.recv([tensor], peer, tag) for tensor in tensors], tensors, None)

    def post_activation(self, key: tuple[bool, int, int], peer: int, device: torch.device) -> PostedReceives:
        """Posts the receives of an activation with the expected signature. key: as in send_activation(). peer: the rank
        that sends."""
        tag, number = self._tag(key[1], _ACTIVATION), torch.zeros(1, dtype=torch.int64)
        with self.context(f"asks for the activation of stage {key[1]} from rank {peer}"):
            number_work = self.group.recv([number], peer, tag)
            posted = self._post(self._last.get(key, ()), peer, tag, device)
        return PostedReceives([number_work, *posted.works], posted.tensors, number)

    def post_gradient(self, stage: int, signature: Signature, peer: int, device: torch.device) -> PostedReceives:
        """Posts the receives of gradients. stage, peer: the stage that sends them, and its rank. signature: of the
        activation that this rank has sent to that stage."""
        with self.context(f"asks for the gradient of stage {stage} from rank {peer}"):
            return self._post([part for part in signature if part.trained], peer, self._tag(stage, _GRADIENT), device)

    def take_activation(self, posted: PostedReceives, key: tuple[bool, int, int], peer: int,
                        device: torch.device) -> list[Tensor]:
        """Waits for an activation and returns its tensors. If its signature is new, receives its description and
        tensors on the third tag."""
        tag, tensors = self._tag(key[1], _NEW), posted.tensors
        with self.context(f"waits for the activation of stage {key[1]} from rank {peer}"):
            for work in posted.works:
                work.wait()
            if length := int(posted.number):
                description = torch.empty(length, dtype=torch.int64)
                self.group.recv([description], peer, tag).wait()
                self._last[key] = _decode(description.tolist())
                new = self._post(self._last[key], peer, tag, device)
                for work in new.works:
                    work.wait()
                tensors = new.tensors
        return [tensor.requires_grad_(part.trained) for tensor, part in zip(tensors, self._last[key])]

    def take_gradient(self, posted: PostedReceives, stage: int, peer: int) -> list[Tensor]:
        """Waits for the gradients that `stage` sends, and returns them."""
        with self.context(f"waits for the gradient of stage {stage} from rank {peer}"):
            for work in posted.works:
                work.wait()
        return posted.tensors
