"""What passes between stages of a pipeline on different ranks: activations one way, gradients of them the other.

Each boundary between two stages has tags of its own, one for each direction, so that what two ranks send each other for
several stages cannot be mistaken. Nobody is told shapes beforehand. Both ends of a boundary keep for each microbatch
the *signature* that it had in the last step: shapes, element types, and which tensors have gradients. A receive of what
this foresees is posted ahead. The sender begins with one number: 0, it is as foreseen; or the length of a new
description. Then it sends what was foreseen, zeros if that was wrong, since a receive waits for it; and what is new,
with its description, on a third tag, where nothing is posted before the number has come. In the first step nothing is
foreseen. Of gradients each side knows the signature: it is that of the activations.
"""
from __future__ import annotations

import contextlib
from typing import Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti.exceptions import Error

_FIRST_TAG = 1 << 24                    # programs have lower ones
_ACTIVATION, _GRADIENT, _NEW = range(3)
# Of element types, by their codes on the wire, which are these places: other versions of torch have other types, so new
# ones come last.
_DTYPES = tuple(getattr(torch, name, None) for name in (
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"))


class Part(NamedTuple):
    """Of a signature: one tensor. trained: a gradient of it comes back."""
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


def _written(signature: Signature) -> list[int]:
    return [number for part in signature for number in
            (_code_of(part.dtype), part.trained, len(part.shape), *part.shape)]


def _read(numbers: Sequence[int]) -> Signature:
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
    """Of one microbatch: what is posted. number: None for gradients, whose signature is known."""
    works: list[dist.Work]
    tensors: list[Tensor]
    number: Tensor | None


class Messages:
    """A rank's side of its boundaries. where: what the rank is at, for errors; their class stays what it was."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.where = group, ""
        self._sent: list[tuple[dist.Work, Tensor, str]] = []
        self._last: dict[tuple[bool, int, int], Signature] = {}    # by training, stage that sends, microbatch

    @contextlib.contextmanager
    def told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Error as error:
            raise type(error)(f"pipeline: {self.where}: {what}: {error}") from error

    def _tag(self, stage: int, kind: int) -> int:
        return _FIRST_TAG + 3 * stage + kind

    # ---- sending: never blocks; what is sent is kept until it has gone ----
    def _send(self, tensors: Sequence[Tensor], peer: int, tag: int, what: str) -> None:
        for tensor in tensors:
            kept = tensor.contiguous()
            with self.told(f"sends {what} to rank {peer}"):
                self._sent.append((self.group.send([kept], peer, tag), kept, f"{what} to rank {peer}"))

    def send_activation(self, key: tuple[bool, int, int], peer: int, tensors: Sequence[Tensor]) -> None:
        """tensors: of the stage in the key; whether they require gradients is told, too."""
        what, now, foreseen = f"the activation of stage {key[1]}", signature_of(tensors), self._last.get(key, ())
        description = [] if now == foreseen else _written(now)
        values = [t.detach() for t in tensors]
        asked = values if now == foreseen else [torch.zeros(p.shape, dtype=p.dtype) for p in foreseen]
        self._send([torch.tensor([len(description)]), *asked], peer, self._tag(key[1], _ACTIVATION), what)
        if description:
            self._send([torch.tensor(description), *values], peer, self._tag(key[1], _NEW), what)
        self._last[key] = now

    def send_gradient(self, stage: int, peer: int, tensors: Sequence[Tensor]) -> None:
        self._send(tensors, peer, self._tag(stage, _GRADIENT), f"the gradient of stage {stage}")

    def reap(self, all_of_them: bool = False) -> None:
        """Lets go of what has gone."""
        left = []
        for entry in self._sent:
            with self.told(f"has sent {entry[2]}"):
                if all_of_them or entry[0].is_completed():
                    entry[0].wait()
                else:
                    left.append(entry)
        self._sent = left

    def forget(self) -> None:
        """After a failure: nothing will come of it any more."""
        self._sent = []

    # ---- receiving ----
    def _post(self, signature: Signature, peer: int, tag: int, device: torch.device) -> Arrival:
        tensors = [torch.empty(part.shape, dtype=part.dtype, device=device) for part in signature]
        return Arrival([self.group.recv([t], peer, tag) for t in tensors], tensors, None)

    def post_activation(self, key: tuple[bool, int, int], peer: int, device: torch.device) -> Arrival:
        """key: of the stage that sends."""
        tag, number = self._tag(key[1], _ACTIVATION), torch.zeros(1, dtype=torch.int64)
        with self.told(f"asks for the activation of stage {key[1]} from rank {peer}"):
            first = self.group.recv([number], peer, tag)
            posted = self._post(self._last.get(key, ()), peer, tag, device)
        return Arrival([first, *posted.works], posted.tensors, number)

    def post_gradient(self, stage: int, signature: Signature, peer: int, device: torch.device) -> Arrival:
        """stage: that sends. signature: of the activation that it got."""
        with self.told(f"asks for the gradient of stage {stage} from rank {peer}"):
            return self._post([p for p in signature if p.trained], peer, self._tag(stage, _GRADIENT), device)

    def take_activation(self, arrival: Arrival, key: tuple[bool, int, int], peer: int,
                        device: torch.device) -> list[Tensor]:
        tag, tensors = self._tag(key[1], _NEW), arrival.tensors
        with self.told(f"waits for the activation of stage {key[1]} from rank {peer}"):
            for work in arrival.works:
                work.wait()
            if length := int(arrival.number):
                description = torch.empty(length, dtype=torch.int64)
                self.group.recv([description], peer, tag).wait()
                self._last[key] = _read(description.tolist())
                late = self._post(self._last[key], peer, tag, device)
                for work in late.works:
                    work.wait()
                tensors = late.tensors
        return [t.requires_grad_(part.trained) for t, part in zip(tensors, self._last[key])]

    def take_gradient(self, arrival: Arrival, stage: int, peer: int) -> list[Tensor]:
        with self.told(f"waits for the gradient of stage {stage} from rank {peer}"):
            for work in arrival.works:
                work.wait()
        return arrival.tensors
