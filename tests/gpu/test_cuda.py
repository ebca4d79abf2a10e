"""Tests with CUDA tensors, on a machine that has a GPU. Ranks share it if there are fewer GPUs than ranks.

The checks of streams, futures and operations are those that tests/python/test_devices.py runs on the emulated device.
Most tests run twice: operations on streams, and tensors that go through the host. test_streams.py has tests of streams
alone.
"""
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist
import torch_tutti

import device_checks
import device_failures
import device_training
from device_checks import late, numbers, same, total
from gpu_ranks import environment
from ranks import Ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(),
                                reason="needs a GPU: torch.cuda.is_available() is False on this machine")


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("size", [2, 4])
def test_operations_give_right_results(either, size, later):
    either(size).run(device_checks.check_operations, later, limit_s=300)


@pytest.mark.parametrize("check", [*device_checks.CHECKS, device_failures.check_refused],
                         ids=lambda check: check.__name__[6:])
def test_device(either, check):
    either(2).run(check, limit_s=120)


def test_errors_of_operations_through_the_host(through_host):
    through_host(2).run(device_failures.check_errors, limit_s=120)


def test_ranks_use_several_devices(through_host):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; this machine has {torch.cuda.device_count()}")
    through_host(2).run(device_checks.check_several_devices, limit_s=120)


# ---- tests that the emulated device cannot run ----
def check_sparse(world):
    device = world.kept["device"]
    dense = late(numbers(world.rank, 6, 3) * (torch.arange(6).unsqueeze(1) % 2), device)
    x = dense.to_sparse(1)
    dist.all_reduce(x)
    dist.all_reduce(dense)
    same(x.to_dense(), dense.cpu(), "a sparse sum")


def test_sparse_tensor_is_summed(either):
    either(2).run(check_sparse, limit_s=120)


def captured_calls(world, group, x):
    """Returns calls with CUDA tensors, and a barrier."""
    parts, peer = [torch.zeros_like(x) for _ in range(world.size)], (world.rank + 1) % world.size
    return [lambda: dist.all_reduce(x, group=group), lambda: dist.all_reduce(x, group=group, async_op=True),
            lambda: dist.all_reduce(x.view(2, 2).t(), group=group), lambda: dist.all_gather(parts, x, group=group),
            lambda: dist.all_reduce_coalesced([x, x], group=group), lambda: dist.all_to_all(parts, parts, group=group),
            lambda: dist.send(x, peer, group=group), lambda: dist.recv(x, peer, group=group)]


def check_capture(world):
    """Checks that calls in a capture are refused, and that the group and the capture are unharmed."""
    x, y = (torch.ones(4, device=world.kept["device"]) for _ in range(2))
    z = torch.zeros_like(y)
    groups, graph = [dist.group.WORLD, dist.new_group()], torch.cuda.CUDAGraph()
    dist.all_reduce(x)
    calls = [call for group in groups for call in captured_calls(world, group, x)]
    if torch_tutti.stream() is not None:
        calls.append(dist.barrier)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for call in calls:
            with pytest.raises(NotImplementedError, match="a graph of cuda:. is being captured.*outside the capture"):
                call()
        y.copy_(z)
    same(y, torch.ones(4), "before the graph runs")
    graph.replay()
    same(y, torch.zeros(4), "after the graph has run")
    for group in groups:
        dist.all_reduce(x, group=group)
    same(x, torch.full((4,), float(world.size ** 3)), "after the capture")


def check_capture_of_older_torch(world):
    """Checks torch before 2.14, which does not report a capture: CUDA raises the error, and the capture is lost."""
    x = torch.zeros(4, device=world.kept["device"])
    with pytest.raises(RuntimeError, match="captur"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(x)
    dist.all_reduce(x)


def test_graph_capture_is_refused(either):
    reports = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
    either(2).run(check_capture if reports else check_capture_of_older_torch, limit_s=120)


def check_large(world):
    """Sums tensors that are larger than any tile, and larger than the pinned memory that is cached."""
    count = 5_000_001
    x = late(numbers(world.rank, count), world.kept["device"])
    works = [dist.all_reduce(x[:count // 2], async_op=True), dist.all_reduce(x[count // 2:], async_op=True)]
    for work in works:
        work.wait()
    same(x, total(world, count), "twenty megabytes")


def test_large_tensors_are_summed(either):
    either(4).run(check_large, limit_s=120)


# ---- training ----
@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}],
                         ids=["one bucket", "small buckets"])
def test_distributed_data_parallel_trains(either, options):
    either(2).run(device_training.check_data_parallel, options, limit_s=200)


def test_fully_sharded_model_trains(either):
    either(2).run(device_training.check_fully_sharded, limit_s=200)


# ---- programs that ask for NCCL ----
def check_named_nccl(world, bound):
    """Runs collectives and training as a program that knows only NCCL. bound: gives the device's id, so that torch
    splits groups."""
    torch_tutti.take_over("nccl")
    device = torch.device("cuda", world.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=world.store, rank=world.rank, world_size=world.size,
                            timeout=timedelta(seconds=60), **({"device_id": device} if bound else {}))
    assert dist.get_backend() == "nccl" and "tutti" in str(dist.get_backend_config())
    groups = [None, dist.new_group([0, 1]), dist.new_group([1])]
    for group in groups:
        if group is None or world.rank in dist.get_process_group_ranks(group):
            x = late(numbers(world.rank, 100), device)
            dist.all_reduce(x, group=group)
            members = range(world.size) if group is None else dist.get_process_group_ranks(group)
            same(x, sum(numbers(rank, 100) for rank in members), "taken over")
    everyone = [None] * world.size
    dist.all_gather_object(everyone, {"rank": world.rank})
    assert everyone == [{"rank": rank} for rank in range(world.size)]
    dist.barrier()
    world.kept["device"] = device
    device_training.check_data_parallel(world, {"device_ids": [device.index]})


@pytest.mark.parametrize("bound", [False, True], ids=["plain", "device_id"])
def test_program_that_asks_for_nccl_runs(tmp_path, bound):
    with Ranks(2, tmp_path, join=False, environment=environment()) as ranks:
        ranks.run(check_named_nccl, bound, limit_s=300)
