"""torch.compile over collectives: traced whole (fullgraph=True) and run by three of torch's backends. Results are
compared with the same function, not compiled, on gloo.

A collective with async_op=True is not traced: torch's own limit (_dynamo/variables/functions.py:2756 in 2.13),
which a test records.
"""
import shutil
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import Ranks
from torch._C._distributed_c10d import _get_work_registry_size
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from transformer import Transformer, loss_of, parallelize, tokens

# Seconds for compiling while other tests run.
LIMIT_S = 240
TRACED = ["eager", "aot_eager"]
BACKENDS = [*TRACED, pytest.param("inductor", marks=pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler; none is here"))]


@pytest.fixture(scope="module")
def compiling(tmp_path_factory):
    """Two ranks. inductor compiles in their own processes, without optimization, and its cache serves only
    this run."""
    folder = tmp_path_factory.mktemp("compile")
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
                   "TORCHINDUCTOR_DEBUG_COMPILE": "1"}
    with Ranks(2, folder, gloo=True, environment=environment) as ranks:
        yield ranks


def compiled(function, backend, fullgraph=True):
    """Returns the compiled function, and a list that gets every graph that torch passes to the backend. If the list
    stays empty, torch has run the function without compiling it."""
    torch._dynamo.reset()
    graphs, compile_graph = [], torch._dynamo.lookup_backend(backend)
    if backend == "inductor":
        # Code without vector instructions compiles faster.
        torch._inductor.config.cpp.simdlen = 1

    def counted(graph, inputs):
        graphs.append(graph)
        return compile_graph(graph, inputs)

    return torch.compile(function, backend=counted, fullgraph=fullgraph), graphs


def mesh_of(world):
    return world.made_once("mesh", lambda: init_device_mesh("cpu", (world.size,)))


@contextmanager
def all_waited():
    """Asserts that all Works of the block have left torch's registry, as waiting for a traced collective must
    ensure."""
    before = _get_work_registry_size()
    yield
    assert _get_work_registry_size() == before


# ---- collectives ----
def all_functional(x, group):
    """Calls each functional collective, with arithmetic before and after that a compiler may reorder."""
    p = dist.get_world_size(group)
    total = functional.all_reduce(x * 2, "sum", group)
    largest = functional.all_reduce(x.sin(), "max", group)
    gathered = functional.all_gather_tensor(x + 1, 0, group)
    scattered = functional.reduce_scatter_tensor(gathered * total.sum(), "sum", 0, group)
    exchanged = functional.all_to_all_single(gathered.relu(), None, None, group)
    first = functional.broadcast(x - 3, 0, group)
    turned = functional.permute_tensor(x.cos().flatten(), list(range(1, p)) + [0], group)
    several = functional.all_reduce_coalesced([x, x * x], "sum", group)
    blocks = functional.all_gather_into_tensor_coalesced([x, x + 2], group)
    pieces = functional.reduce_scatter_tensor_coalesced([gathered, gathered * 2], "sum", [0, 0], group)
    return [total, largest, scattered, exchanged, first, turned, *several, *blocks, *pieces]


@all_waited()
def traces(world, name, backend):
    function = globals()[name]
    fast, graphs = compiled(function, backend)
    for turn in range(2):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * turn + world.rank))
        expected = function(x.clone(), world.gloo)
        for ours, theirs in zip(fast(x.clone(), dist.group.WORLD), expected, strict=True):
            torch.testing.assert_close(ours + 0, theirs + 0)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_functional_collectives(compiling, backend):
    compiling.run(traces, "all_functional", backend, limit_s=LIMIT_S)


def all_in_place(x, group):
    """Makes calls of torch.distributed, which torch replaces by functional ones while it traces."""
    p = dist.get_world_size(group)
    total = x * 3
    dist.all_reduce(total, group=group)
    gathered = x.new_empty(p * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(gathered, x + total, group=group)
    scattered = torch.empty_like(x)
    dist.reduce_scatter_tensor(scattered, gathered.sin(), group=group)
    exchanged = torch.empty_like(gathered)
    dist.all_to_all_single(exchanged, gathered * 2, group=group)
    parts = [torch.empty_like(x) for _ in range(p)]
    dist.all_gather(parts, x.cos(), group=group)
    return [total + 1, gathered, scattered * 2, exchanged, *parts]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ordinary_collectives_are_traced(compiling, backend):
    compiling.run(traces, "all_in_place", backend, limit_s=LIMIT_S)


@all_waited()
def differentiated(world, backend):
    """Checks gradients through collectives: the backward of a gather is a reduce-scatter, and the other way round."""
    group = dist.group.WORLD

    def function(x, group):
        whole = functional.all_gather_tensor_autograd(x.tanh(), 0, group)
        piece = functional.reduce_scatter_tensor_autograd(whole * whole, "sum", 0, group)
        return functional.all_to_all_single_autograd(piece * 3, [2, 2], [2, 2], group).sum()

    found = []
    fast, graphs = compiled(function, backend)
    for run, of in ((fast, group), (function, world.gloo)):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(world.rank)).requires_grad_()
        run(x, of).backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", TRACED)
def test_gradients_through_collectives(compiling, backend):
    compiling.run(differentiated, backend, limit_s=LIMIT_S)


def asynchronous(world):
    def function(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x

    # Without fullgraph=True, torch runs the call without tracing it.
    in_parts, _ = compiled(function, "eager", fullgraph=False)
    assert torch.equal(in_parts(torch.ones(3)), torch.full((3,), 2.0))
    compiled(function, "eager")[0](torch.ones(3))


def test_asynchronous_collectives_are_not_traced_by_torch(compiling):
    for outcome in compiling.outcomes(asynchronous, limit_s=LIMIT_S):
        assert outcome.error == "Unsupported" and "async_op=True" in outcome.text, outcome.trace


# ---- models with collectives in their graphs ----
class Gathered(torch.nn.Module):
    """Fully sharded data parallelism as a parametrization: a parameter is stored in parts and gathered for each use."""

    def forward(self, x):
        return x.redistribute(placements=[Replicate()]).to_local(grad_placements=[MEAN])


MEAN = torch.distributed.tensor.Partial("avg")


def network(seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


@all_waited()
def simple_fsdp(world, backend):
    ours, judge = network(), network()
    for layer in (ours[0], ours[2]):
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(distribute_tensor(parameter.data, mesh_of(world), [Shard(0)])))
            parametrize.register_parametrization(layer, name, Gathered(), unsafe=True)
    fast, graphs = compiled(ours, backend)
    batches = [torch.randn(5, 6, generator=torch.Generator().manual_seed(r)) for r in range(world.size)]
    for turn in range(2):
        for model in (ours, judge):
            model.zero_grad()
        fast(batches[world.rank]).square().mean().backward()
        torch.stack([judge(x).square().mean() for x in batches]).mean().backward()
        for (name, mine), whole in zip(sorted_parameters(ours), sorted_parameters(judge), strict=True):
            torch.testing.assert_close(mine.grad.full_tensor(), whole[1].grad, msg=lambda text: f"{name}: {text}")
    assert len(graphs) == 1


def sorted_parameters(model):
    """Returns (name, parameter) sorted by name, without the parts of a name that a parametrization adds."""
    return sorted((name.replace("parametrizations.", "").replace(".original", ""), p)
                  for name, p in model.named_parameters())


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_gathered_in_the_graph(compiling, backend):
    compiling.run(simple_fsdp, backend, limit_s=LIMIT_S)


@all_waited()
def tensor_parallel(world, backend):
    ours, judge = parallelize(Transformer(layers=1), mesh_of(world)), Transformer(layers=1)
    fast, graphs = compiled(ours, backend)
    for turn in range(2):
        x, y = tokens(turn)
        losses = [loss_of(model(x), y) for model in (fast, judge)]
        torch.testing.assert_close(*losses)
        for model, loss in zip((ours, judge), losses):
            model.zero_grad()
            loss.backward()
        for (name, mine), whole in zip(ours.named_parameters(), judge.parameters()):
            grad = mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad
            torch.testing.assert_close(grad, whole.grad, rtol=2e-5, atol=2e-6, msg=lambda text: f"{name}: {text}")
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", TRACED)
def test_tensor_parallel_transformer_is_one_graph(compiling, backend):
    compiling.run(tensor_parallel, backend, limit_s=LIMIT_S)


class Wide(torch.nn.Module):
    """A model with more than one of DDP's buckets. torch makes the first one at least 1 MiB large."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 520), torch.nn.Tanh(), torch.nn.Linear(520, 520),
                                          torch.nn.Tanh(), torch.nn.Linear(520, 520), torch.nn.Linear(520, 2))

    def forward(self, x):
        return self.layers(x)


def under_ddp(world, backend):
    """torch cuts the graph at DDP's buckets, so that their reduction begins before backward ends."""
    gradients = []
    for group in (None, world.gloo):
        model = DistributedDataParallel(Wide(), process_group=group, bucket_cap_mb=1)
        run, graphs = (model, []) if group else compiled(model, backend, fullgraph=False)
        for turn in range(3):
            model.zero_grad()
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(10 * turn + world.rank))
            run(x).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        assert group or len(graphs) > 1
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", TRACED)
def test_graph_is_cut_at_buckets_of_ddp(compiling, backend):
    compiling.run(under_ddp, backend, limit_s=LIMIT_S)
