"""Averages and broadcasts of many tensors over the ranks of a group of any backend, in few messages: tensors of one
dtype and device travel together in flat buckets."""
from __future__ import annotations

import collections
import itertools
from typing import Any, Iterable, NamedTuple, Sequence

import torch
import torch.distributed as dist

# The size of a bucket, unless one tensor alone is larger. DistributedDataParallel's default.
BUCKET_BYTES = 25 << 20
# How many broadcasts are under way at once.
_BROADCASTS = 8


def divide_into_buckets(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Divides tensors, in their order, into lists of one dtype and device each, of at most BUCKET_BYTES. A larger
    tensor is alone; those without elements are left out."""
    open_buckets: dict[Any, list[torch.Tensor]] = {}
    room: dict[Any, int] = {}
    found = []
    for tensor in tensors:
        if not tensor.numel():
            continue
        kind, size = (tensor.dtype, tensor.device), tensor.numel() * tensor.dtype.itemsize
        if kind not in open_buckets or size > room[kind]:
            open_buckets[kind], room[kind] = [], BUCKET_BYTES
            found.append(open_buckets[kind])
        open_buckets[kind].append(tensor)
        room[kind] -= size
    return found


def _split_flat(flat: torch.Tensor, bucket: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the parts of a flat tensor that stand for the tensors of a bucket, in their shapes."""
    parts = flat.split([tensor.numel() for tensor in bucket])
    return [part.view(tensor.shape) for part, tensor in zip(parts, bucket)]


def check_same_tensors(call: str, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup) -> None:
    """Raises ValueError on all ranks if names, dtypes or shapes of the tensors differ between ranks, or if a tensor is
    on the meta device. call: the beginning of the error's text. Collective."""
    own = [f"{name} of {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()]
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, own, group)
    for rank, others in enumerate(of_ranks):
        for first, other in itertools.zip_longest(of_ranks[0], others, fillvalue="no more"):
            if first != other:
                raise ValueError(f"{call}: rank 0 has {first}, rank {rank} has {other}; all ranks must pass the same "
                                 "in the same order")
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise ValueError(f"{call}: {name} is on the meta device; give it memory first, for example by "
                             "model.to_empty(device=\"cpu\")")


@torch.no_grad()
def broadcast_values(tensors_of: Sequence[Sequence[torch.Tensor]], group: dist.ProcessGroup) -> None:
    """Gives all ranks the values that rank r of the group has in the tensors tensors_of[r]. Collective."""
    rank = dist.get_rank(group)
    under_way: collections.deque[Any] = collections.deque()

    def finish_oldest() -> None:
        source, bucket, flat, work = under_way.popleft()
        work.wait()
        for tensor, part in zip(bucket, _split_flat(flat, bucket)) if source != rank else ():
            tensor.copy_(part)
    for source, tensors in enumerate(tensors_of):
        for bucket in divide_into_buckets(tensors):
            flat = (torch.cat([tensor.reshape(-1) for tensor in bucket]) if source == rank else
                    bucket[0].new_empty(sum(tensor.numel() for tensor in bucket)))
            work = dist.broadcast(flat, group=group, group_src=source, async_op=True)
            under_way.append((source, bucket, flat, work))
            if len(under_way) > _BROADCASTS:
                finish_oldest()
    while under_way:
        finish_oldest()


class Average(NamedTuple):
    """An all-reduce that averages the gradients of a bucket of parameters. flat: has the average when `work` has
    ended."""
    bucket: list[torch.Tensor]
    flat: torch.Tensor
    work: Any


@torch.no_grad()
def start_average(bucket: list[torch.Tensor], group: dist.ProcessGroup,
                  sum_dtype: torch.dtype | None = None) -> Average:
    """Starts to average the gradients that the parameters of a bucket have in `grad`. A missing one counts as zeros.
    sum_dtype: the type of the sum; None: that of the gradients. Collective."""
    for parameter in bucket:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    flat = torch.cat([(parameter.new_zeros(parameter.numel()) if parameter.grad is None else
                       parameter.grad.reshape(-1)) for parameter in bucket])
    flat = flat if sum_dtype is None else flat.to(sum_dtype)
    # the division comes before the sum, as in DistributedDataParallel, so that float16 does not overflow
    flat.mul_(1 / dist.get_world_size(group))
    return Average(bucket, flat, dist.all_reduce(flat, group=group, async_op=True))


@torch.no_grad()
def finish_averages(averages: Sequence[Average], group: dist.ProcessGroup) -> None:
    """Waits for averages and writes them to `grad`, which stays None where no rank had a gradient. Collective, in the
    same order on all ranks."""
    if not averages:
        return
    parameters = [parameter for average in averages for parameter in average.bucket]
    used = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    used = used.to(parameters[0].device)
    dist.all_reduce(used, group=group)
    is_used = dict(zip(parameters, used.tolist()))
    for bucket, flat, work in averages:
        work.wait()
        for parameter, part in zip(bucket, _split_flat(flat, bucket)):
            if is_used[parameter] and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                parameter.grad.copy_(part)


def average_gradients(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Averages `grad` of parameters over the ranks. A missing one counts as zeros, and stays None if no rank has it.
    Collective."""
    finish_averages([start_average(bucket, group) for bucket in divide_into_buckets(parameters)], group)
