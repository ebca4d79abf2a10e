"""Tests of operations on CUDA streams, on a machine that has a GPU, or by script/test-cuda."""
import gpu_ranks
import memory_checks
import pytest
import stream_checks
import stream_failures
import torch
import uneven_checks
import work_checks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import network

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(),
                                reason="needs a GPU: torch.cuda.is_available() is False on this machine")
CHECKS = [*stream_checks.CHECKS, *uneven_checks.CHECKS, *work_checks.CHECKS, *memory_checks.CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
def test_streams(on_gpu, check):
    on_gpu(2).run(check, limit_s=120)


def test_flight_recorder_sees_ends(started):
    started(2, TORCH_FR_BUFFER_SIZE="100").run(stream_checks.check_recorder, limit_s=120)


def test_group_opens_again_after_a_change_of_its_members(started):
    started(2).run(stream_checks.check_reconfigure, limit_s=120)


def test_group_opens_although_torch_has_cached_memory(started):
    ranks = started(2, FAKE_CUDA_MEMORY=str(200 << 20))
    ranks.run(memory_checks.check_opens_although_torch_has_cached_memory, limit_s=120)


def test_refused_list_starts_nothing(on_gpu):
    on_gpu(2).run(stream_failures.check_refused_list, limit_s=120)


def test_second_device_is_refused(on_gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs; this machine has {torch.cuda.device_count()}")
    on_gpu(2).run(stream_failures.check_second_device_is_refused, limit_s=120)


def make_data_parallel(device):
    return DistributedDataParallel(network().to(device), bucket_cap_mb=0.0001)


def make_fully_sharded(device):
    model = network().to(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


@pytest.mark.parametrize("make_model", [make_data_parallel, make_fully_sharded])
def test_host_does_not_wait_in_a_step(on_gpu, make_model):
    on_gpu(2).run(stream_checks.check_step_has_no_host_wait, make_model, limit_s=200)


# ---- failures: streams that go on after one access memory without order, so the fake's checker is off ----
@pytest.fixture(scope="module")
def unchecked(tmp_path_factory):
    with gpu_ranks.kept(tmp_path_factory, FAKE_CUDA_ORDER="0") as of_size:
        yield of_size


@pytest.mark.parametrize("check", stream_failures.FAILURES, ids=lambda check: check.__name__[6:])
def test_failures(unchecked, check):
    unchecked(2).run(check, limit_s=120)


@pytest.mark.parametrize("check", stream_failures.DEATHS, ids=lambda check: check.__name__[6:])
def test_streams_go_on_after_a_death(started, check):
    ranks = started(2, FAKE_CUDA_ORDER="0")
    survivor, dead = ranks.outcomes(check, limit_s=120)
    assert not survivor.failed, survivor.trace
    assert dead.died == -9


def test_a_failed_call_is_waited_for(started):
    ranks = started(2, FAKE_CUDA_ORDER="0", TUTTI_CUDA_SLOT_BYTES="8192")
    ranks.run(stream_failures.check_failed_call_is_waited_for, limit_s=120)


def test_setting_keeps_the_way_through_the_host(through_host):
    through_host(2).run(stream_failures.check_goes_through_host, limit_s=120)


def test_one_rank_without_streams_decides_for_all(started):
    started(2, join=False).run(stream_failures.check_one_rank_without, limit_s=300)
