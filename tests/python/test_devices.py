"""Tests with tensors of another device than the CPU, on an emulated one (tests/device/sim.cpp): streams, futures, and
the results of every operation."""
import device_checks
import device_failures
import device_training
import pytest
import sim_device
from ranks import Ranks, kept_ranks


@pytest.fixture(scope="module")
def device():
    """Builds the emulated device, or skips the test."""
    if problem := sim_device.missing():
        pytest.skip(problem)
    sim_device.build()


@pytest.fixture(scope="module")
def on_device(device, tmp_path_factory):
    """A function: on_device(size) returns ranks that have joined a group for the CPU and the emulated device."""
    with kept_ranks(lambda size: Ranks(size, tmp_path_factory.mktemp("sim"), join=False),
                    lambda ranks: ranks.run(device_checks.join, "sim")) as of_size:
        yield of_size


@pytest.mark.parametrize("later", [False, True], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("size", [2, 3])
def test_operations_give_the_results_of_the_cpu(on_device, size, later):
    on_device(size).run(device_checks.check_operations, later)


@pytest.mark.parametrize("check", [*device_checks.CHECKS, *device_failures.CHECKS,
                                   device_checks.check_several_devices, device_failures.check_capture_is_refused],
                         ids=lambda check: check.__name__[6:])
def test_device(on_device, check):
    on_device(2).run(check)


def test_failing_copy_is_an_error_of_the_wait(device, fresh):
    """Turns torch's flight recorder off, because the hooks of torch 2.15's recorder deliver each result at once."""
    ranks = fresh(2, join=False, environment={"TORCH_FR_BUFFER_SIZE": "0"})
    ranks.run(device_checks.join, "sim")
    ranks.run(device_failures.check_failing_copies)


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}],
                         ids=["one bucket", "small buckets"])
def test_data_parallel_trains_as_one_process(on_device, options):
    on_device(2).run(device_training.check_data_parallel, options)


def test_fully_sharded_trains_as_one_process(on_device):
    on_device(2).run(device_training.check_fully_sharded)
