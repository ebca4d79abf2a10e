"""Makes ranks servers and workers. Each rank checks its arguments, and all ranks compare theirs, so that a mistake on
one rank is an error on every rank. Then rank 0 broadcasts the initial values, and each pair of server and worker gets a
group."""
from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import zip_longest
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torch_tutti._extension import backend_of
from torch_tutti._optimizer_trial import examine
from torch_tutti.ps._acceptor import Acceptor
from torch_tutti.ps._link import Link
from torch_tutti.ps._meeting import Meeting, Run, find_run, publish
from torch_tutti.ps._model import describe_tensors, divide_model, largest_lag, tensors, trained, untrained
from torch_tutti.ps._server import Server
from torch_tutti.ps._shard import Shard
from torch_tutti.ps._slices import Slice
from torch_tutti.ps._worker import Worker

# (name of a parameter, flat piece of it) pairs
Named = list[tuple[str, Tensor]]


def join(model: nn.Module, optimizer: Callable[[Named], torch.optim.Optimizer], *, servers: int = 1, mode: str = "sync",
         staleness: int | None = None, slice_bytes: int = 1 << 20,
         whole_parameters: bool = False, late_workers: bool = False) -> Server | Worker:
    """Makes this rank a Server (ranks 0 to servers - 1) or a Worker (the others). The model gets the parameters and
    buffers of rank 0. Collective over the default group, with the same arguments on all ranks.

    optimizer: a function that returns a torch.optim optimizer for one slice. Servers call it once for each slice, with
    (name, flat piece of a parameter) pairs. The optimizer must treat all elements equally (SGD, Adam, AdamW, RMSprop,
    …), because it sees pieces. whole_parameters: no parameter is cut, and the pairs have whole parameters in their
    shapes, for optimizers that look at whole tensors (LARS, Muon, Adafactor, …). mode: "sync": a step uses the average
    of all workers' gradients; "async": each gradient is a step of its own when it arrives; "bounded": like async, but a
    worker gets no parameters while it is more than `staleness` pushes ahead of the slowest (stale synchronous parallel,
    Ho et al. 2013). slice_bytes: bytes of a slice, the unit that travels and that is assigned to a server.
    late_workers: processes outside the group may become workers by join_late(), while the servers serve.

    Raises ValueError on all ranks for invalid arguments, for arguments or models that differ between ranks, and for an
    optimizer that looks at more than it gets."""
    if not dist.is_initialized():
        raise ValueError("ps: call init_process_group first")
    settings = {"servers": servers, "mode": mode, "staleness": staleness, "slice_bytes": slice_bytes,
                "whole_parameters": whole_parameters}
    slices = _run_on_all_ranks(lambda: divide_model(model, dist.get_world_size(), **settings),
                               _descriptions(model, {**settings, "late_workers": late_workers}))
    _broadcast_first_values(model)
    max_lag = largest_lag(mode, staleness)
    shards = _run_on_all_ranks(lambda: _create_shards(model, optimizer, slices, servers, mode == "sync", max_lag,
                                                      whole_parameters))
    links = _create_links(servers)
    if late_workers and dist.get_rank() == 0:
        publish(_store(), Run(dist.get_world_size(), settings, describe_tensors(model), _timeout().total_seconds()))
    dist.barrier()                      # if a rank dies before this, all ranks raise an error
    if dist.get_rank() >= servers:
        return Worker(model, slices, links, max_lag, dist.get_rank())
    return Server(model, shards, links, _create_acceptor(model) if late_workers else None)


# ---- on one rank ----
def _descriptions(model: nn.Module, settings: dict[str, Any]) -> list[str]:
    """Returns texts that describe the settings and each tensor of the model. They must be equal on all ranks."""
    return [*(f"{name}={value!r}" for name, value in settings.items()), *describe_tensors(model)]


def _store() -> dist.Store:
    """Returns the store of the default group."""
    return dist.group.WORLD.get_group_store()


def _timeout() -> timedelta:
    """Returns the timeout of the default group if its backend is tutti, else torch's default."""
    backend = backend_of(dist.group.WORLD)
    return backend.options.timeout if backend is not None else dist.constants.default_pg_timeout


def _create_acceptor(model: nn.Module) -> Acceptor:
    """Returns the Acceptor of this server. Late workers get the tensors that are not trained from rank 0."""
    run = find_run(_store())
    if run is None:
        raise RuntimeError("ps: the store of the default group has lost what rank 0 has published")
    return Acceptor(Meeting(_store(), run), dist.get_rank(), untrained(model) if dist.get_rank() == 0 else [])


def _create_shards(model: nn.Module, optimizer: Any, slices: list[Slice], servers: int, averages: bool,
                   max_lag: int | None, whole_parameters: bool) -> list[Shard]:
    """Returns a Shard for each slice of this rank; none on a worker. averages, max_lag, whole_parameters: as in
    Shard."""
    parameters, own_rank, workers = trained(model), dist.get_rank(), range(servers, dist.get_world_size())
    shards = [Shard(slice_, parameters, optimizer, workers, averages, max_lag, whole_parameters)
              for slice_ in slices if slice_.server == own_rank]
    for kind in {type(shard.optimizer) for shard in shards}:
        _check_optimizer([shard for shard in shards if type(shard.optimizer) is kind], whole_parameters)
    return shards


def _check_optimizer(shards: list[Shard], whole_parameters: bool) -> None:
    """Raises NotImplementedError if the optimizers of these shards, which are of one class, look at more than the
    elements or the parameters that each of them has."""
    first = shards[0].optimizer
    shapes = {identity: shape for shard in shards for identity, shape in shard.shapes.items()}
    groups = [group for shard in shards for group in shard.optimizer.param_groups]
    finding = examine(first, groups, "ps", "use an optimizer without this",
                      lambda piece: shapes.get(id(piece), piece.shape))
    if finding.clip is not None:
        raise NotImplementedError(f"ps: {type(first).__name__} clips the norm of all gradients by its option "
                                  f"{finding.clip}, but has those of one slice; set {finding.clip}=None")
    if not finding.is_elementwise and not whole_parameters:
        raise NotImplementedError(f"ps: {type(first).__name__} looks at whole tensors, but a slice has pieces of them; "
                                  "use join(…, whole_parameters=True)")


# ---- among all ranks ----
def _run_on_all_ranks(make: Callable[[], Any], descriptions: Sequence[str] = ()) -> Any:
    """Returns make(). Raises ValueError on all ranks if make() fails on any rank, or if `descriptions` differ between
    ranks. Collective."""
    made, problem = None, ""
    try:
        made = make()
    except Exception as error:          # all ranks raise it, below
        problem = str(error) if str(error).startswith("ps: ") else f"ps: {type(error).__name__}: {error}"
    of_all_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all_ranks, (problem, descriptions))
    for rank, (problem_there, _) in enumerate(of_all_ranks):
        if problem_there:
            raise ValueError(f"{problem_there} (rank {rank})")
    for rank, (_, theirs) in enumerate(of_all_ranks):
        for expected, actual in zip_longest(of_all_ranks[0][1], theirs, fillvalue="nothing more"):
            if expected != actual:
                raise ValueError(f"ps: rank {rank} has {actual}, rank 0 has {expected}; all ranks must pass the same "
                                 "arguments and the same model")
    return made


@torch.no_grad()
def _broadcast_first_values(model: nn.Module) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    for _, tensor in tensors(model):
        values = tensor.detach().contiguous()
        dist.broadcast(values, 0)
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)


def _create_links(servers: int) -> list[Link]:
    """Returns this rank's links: to each worker on a server, to each server on a worker. Creating a group is
    collective, so all ranks create the groups of all pairs in the same order."""
    backend, own_rank, links = backend_of(dist.group.WORLD), dist.get_rank(), []
    timeout = backend.options.timeout if backend is not None else None
    for server in range(servers):
        for worker in range(servers, dist.get_world_size()):
            pair = dist.new_group([server, worker], timeout=timeout, group_desc=f"ps {server}-{worker}")
            if own_rank in (server, worker):
                peer = worker if own_rank == server else server
                links.append(Link(pair, peer, dist.get_group_rank(pair, peer),
                                  partial(dist.destroy_process_group, pair)))
    return links
