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
    """One tensor of a signature. trained: its gradient is sent back."""
    dtype: torch.dtype
    trained: bool
    shape: tuple[int, ...]


Signature = tuple[Part, ...]


def signature_of(tensors: Sequence[Tensor]) -> Signature:
    return tuple(Part(t.dtype, t.requires_grad, tuple(t.shape)) for t in tensors)


def _code_of(dtype: torch.dtype) -> int:
    if dtype not in _DTYPES:
        raise ValueError(f"pipeline: activations of {dtype} cannot be sent; convert them to one of "
                         f"{', '.join(str(known) for known in _DTYPES if known is not None)}")
    return _DTYPES.index(dtype)


def _encode(signature: Signature) -> list[int]:
    """A signature as a description: for each tensor dtype code, trained, dimensions, sizes."""
    return [number for part in signature for number in
            (_code_of(part.dtype), part.trained, len(part.shape), *part.shape)]


def _decode(numbers: Sequence[int]) -> Signature:
    """The signature of a description. Raises ValueError if it is invalid."""
    found, at = [], 0
    while at < len(numbers):
        code, trained, dimensions = (*numbers[at:at + 3], -1, -1)[:3]
        shape = tuple(numbers[at + 3:at + 3 + dimensions])
        dtype = _DTYPES[code] if 0 <= code < len(_DTYPES) else None
        if dtype is None or len(shape) != dimensions or min(shape, default=0) < 0:
            raise ValueError(f"pipeline: a stage has sent a description that this one cannot read ({list(numbers)}); "
                             "all ranks must have the same version of tutti, and torch with the same element types")
        found.append(Part(dtype, bool(trained), shape))
        at += 3 + dimensions
    return tuple(found)


class Arrival(NamedTuple):
    """The posted receives of one microbatch. number: the length of a new description; None for gradients."""
    works: list[dist.Work]
    tensors: list[Tensor]
    number: Tensor | None


class Messages:
    """This rank's ends of its boundaries. where: the running action, for error texts."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.where = group, ""
        self._sent: list[tuple[dist.Work, Tensor, str]] = []
        self._last: dict[tuple[bool, int, int], Signature] = {}    # by (training, sending stage, microbatch)

    @contextlib.contextmanager
    def context(self, what: str) -> Iterator[None]:
        """Adds the running action and `what` to the text of errors, and keeps their class."""
        try:
            yield
        except Error as error:
            raise type(error)(f"pipeline: {self.where}: {what}: {error}") from error

    def _tag(self, stage: int, kind: int) -> int:
        return _FIRST_TAG + 3 * stage + kind

    # ---- sending: never blocks; tensors are kept until they are sent ----
    def _send(self, tensors: Sequence[Tensor], peer: int, tag: int, what: str) -> None:
        for tensor in tensors:
            kept = tensor.contiguous()
            with self.context(f"sends {what} to rank {peer}"):
                self._sent.append((self.group.send([kept], peer, tag), kept, f"{what} to rank {peer}"))

    def send_activation(self, key: tuple[bool, int, int], peer: int, tensors: Sequence[Tensor]) -> None:
        """Sends a stage's outputs, with the information which of them need gradients. key: (training, sending stage,
        microbatch)."""
        what, now, expected = f"the activation of stage {key[1]}", signature_of(tensors), self._last.get(key, ())
        description = [] if now == expected else _encode(now)
        values = [t.detach() for t in tensors]
        first = values if now == expected else [torch.zeros(p.shape, dtype=p.dtype) for p in expected]
        self._send([torch.tensor([len(description)]), *first], peer, self._tag(key[1], _ACTIVATION), what)
        if description:
            self._send([torch.tensor(description), *values], peer, self._tag(key[1], _NEW), what)
        self._last[key] = now

    def send_gradient(self, stage: int, peer: int, tensors: Sequence[Tensor]) -> None:
        self._send(tensors, peer, self._tag(stage, _GRADIENT), f"the gradient of stage {stage}")

    def reap(self, all_of_them: bool = False) -> None:
        """Releases the tensors of completed sends; waits for all sends if all_of_them."""
        left = []
        for entry in self._sent:
            with self.context(f"has sent {entry[2]}"):
                if all_of_them or entry[0].is_completed():
                    entry[0].wait()
                else:
                    left.append(entry)
        self._sent = left

    def forget(self) -> None:
        """Drops all sends after a failure, because none of them will complete."""
        self._sent = []

    # ---- receiving ----
    def _post(self, signature: Signature, peer: int, tag: int, device: torch.device) -> Arrival:
        tensors = [torch.empty(part.shape, dtype=part.dtype, device=device) for part in signature]
        return Arrival([self.group.recv([t], peer, tag) for t in tensors], tensors, None)

    def post_activation(self, key: tuple[bool, int, int], peer: int, device: torch.device) -> Arrival:
        """Posts the receives of an activation. key: as of send_activation()."""
        tag, number = self._tag(key[1], _ACTIVATION), torch.zeros(1, dtype=torch.int64)
        with self.context(f"asks for the activation of stage {key[1]} from rank {peer}"):
            first = self.group.recv([number], peer, tag)
            posted = self._post(self._last.get(key, ()), peer, tag, device)
        return Arrival([first, *posted.works], posted.tensors, number)

    def post_gradient(self, stage: int, signature: Signature, peer: int, device: torch.device) -> Arrival:
        """Posts the receives of gradients. stage: the sender. signature: of the activation that this rank sent it."""
        with self.context(f"asks for the gradient of stage {stage} from rank {peer}"):
            return self._post([p for p in signature if p.trained], peer, self._tag(stage, _GRADIENT), device)

    def take_activation(self, arrival: Arrival, key: tuple[bool, int, int], peer: int,
                        device: torch.device) -> list[Tensor]:
        """Waits for an activation. Receives it on the third tag if its signature is new."""
        tag, tensors = self._tag(key[1], _NEW), arrival.tensors
        with self.context(f"waits for the activation of stage {key[1]} from rank {peer}"):
            for work in arrival.works:
                work.wait()
            if length := int(arrival.number):
                description = torch.empty(length, dtype=torch.int64)
                self.group.recv([description], peer, tag).wait()
                self._last[key] = _decode(description.tolist())
                late = self._post(self._last[key], peer, tag, device)
                for work in late.works:
                    work.wait()
                tensors = late.tensors
        return [t.requires_grad_(part.trained) for t, part in zip(tensors, self._last[key])]

    def take_gradient(self, arrival: Arrival, stage: int, peer: int) -> list[Tensor]:
        """Waits for the gradients that `stage` sends."""
        with self.context(f"waits for the gradient of stage {stage} from rank {peer}"):
            for work in arrival.works:
                work.wait()
        return arrival.tensors
