"""Tests of TUTTI_DEBUG: it finds NaN in an input, and a result that differs on one rank, and names operation, rank and
line; it sets a timeout and switches the recorder on. Without it nothing is checked."""
import ctypes
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti as tutti
from torch_tutti import _debug, _recorder
from torch_tutti._extension import backend_of


@pytest.fixture
def debugged(fresh, tmp_path):
    """A function: debugged(size, …) starts ranks with TUTTI_DEBUG."""
    def ranks(size, value="1", **options):
        return fresh(size, environment={"TUTTI_DEBUG": value, "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"},
                     **options)
    return ranks


def with_nan_on_rank_1(world, elements=4):
    x = torch.ones(elements)
    if world.rank == 1:
        x[2] = float("nan")
    return x


# ---- NaN ----
def nan_in_a_call(world):
    dist.all_reduce(torch.full((3,), float("inf")))
    x = with_nan_on_rank_1(world)
    with pytest.raises(tutti.ResultError) as error:
        dist.all_reduce(x)
    # The group works on, and only the first NaN is an error.
    dist.all_reduce(x)
    return str(error.value)


def test_nan_is_found_on_its_rank(debugged):
    for text in debugged(2).run(nan_in_a_call):
        assert "operation 2: the first NaN of this group is in the input of rank 1: all_reduce of [4] float32, " \
               "element 2, called at python/test_debug.py:" in text
        assert "(nan_in_a_call)" in text and "on that rank; TUTTI_DEBUG=warn only warns of it" in text


def nan_in_async_calls(world):
    with pytest.raises(tutti.ResultError, match="operation 1: the first NaN .* rank 1: all_reduce of .* element 4"):
        # All ranks learn of the NaN in the exchange after the first call. A later call raises the error, at the latest
        # the second barrier.
        works = [dist.all_reduce(with_nan_on_rank_1(world).to(dtype), async_op=True)
                 for dtype in (torch.complex64, torch.bfloat16, torch.float64)]
        for work in works:
            work.wait()
        dist.barrier()
        dist.barrier()
    x, half = with_nan_on_rank_1(world, 8).half(), torch.empty(4, dtype=torch.half)
    group = dist.new_group()
    with pytest.raises(tutti.ResultError, match=r"operation 1: .* rank 1: _reduce_scatter_base of \[8\] float16"):
        dist.reduce_scatter_tensor(half, x, group=group)


def test_nan_of_asynchronous_calls_is_found_in_a_later_call(debugged):
    debugged(2).run(nan_in_async_calls)


def only_warned(world, path):
    with open(path, "w") as file:
        os.dup2(file.fileno(), 2)
    dist.all_reduce(with_nan_on_rank_1(world))


def test_warn_raises_no_error(debugged, tmp_path):
    debugged(2, "warn").run(only_warned, tmp_path / "stderr")
    assert "Warning: tutti: operation 1: the first NaN of this group is in the input of rank 1: " in \
        (tmp_path / "stderr").read_text()


# ---- results that differ ----
PAGE, PROTECTION, SHARED, SHARED_FIXED = 4096, 3, 1, 0x11


def broken_memory():
    """Returns a tensor of 2048 float32 in broken memory: its second half always reads as its first one, because the
    two virtual pages have one physical page."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [
        ctypes.c_long]
    page = os.memfd_create("page")
    os.ftruncate(page, 2 * PAGE)
    first = libc.mmap(None, 2 * PAGE, PROTECTION, SHARED, page, 0)
    assert libc.mmap(first + PAGE, PAGE, PROTECTION, SHARED_FIXED, page, 0) == first + PAGE
    return torch.frombuffer((ctypes.c_char * (2 * PAGE)).from_address(first), dtype=torch.float32)


def broadcast_into_broken_memory(world, **options):
    x = torch.arange(2048.0)
    dist.broadcast(x, 0)
    dist.barrier()
    if world.rank == 1:
        x = broken_memory()
    dist.broadcast(x, 0, **options)


def wrong_result(world):
    with pytest.raises(tutti.ResultError) as error:
        broadcast_into_broken_memory(world)
    dist.barrier()
    return str(error.value)


def test_wrong_result_is_found_on_all_ranks(debugged):
    for text in debugged(2).run(wrong_result):
        assert "operation 3 (broadcast): its results must be equal on all ranks, but their checksums differ: " in text
        assert "rank 0 has " in text and "rank 1 has " in text and "the memory of a rank is broken" in text
        assert "(this rank's call is at python/test_debug.py:" in text and "(broadcast_into_broken_memory)" in text


def nothing_is_checked(world):
    dist.all_reduce(with_nan_on_rank_1(world))
    broadcast_into_broken_memory(world)
    assert _recorder.recording() is None


def test_nothing_is_checked_without_the_variable(shared):
    shared(2).run(nothing_is_checked)


def equal_results(world):
    """Calls with results that differ between ranks by right, and the same call made in two ways."""
    me, size = world.rank, world.size
    x = torch.arange(12.0).reshape(3, 4).t() if me else torch.arange(12.0).reshape(4, 3)
    parts = [torch.empty(4, 3) for _ in range(size)]
    dist.all_gather(parts, x)
    dist.all_gather([torch.empty(rank + 1) for rank in range(size)], torch.ones(me + 1))
    one = torch.ones(4 * size)
    works = [dist.all_reduce(one, async_op=True) for _ in range(40)]
    dist.scatter(torch.empty(2), [torch.full((2,), 1.0 * rank) for rank in range(size)] if me == 0 else None, 0)
    dist.all_to_all_single(torch.empty(size), torch.arange(size) + 10.0 * me)
    for work in works:
        work.wait()
    tutti.all_reduce(one)
    tutti.all_reduce_norm(torch.ones(size, 4))
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(one)
        dist.all_reduce(one)
    # One rank waits in the call, the other one later.
    work = dist.all_reduce(one, async_op=bool(me))
    if work:
        work.wait()
    with pytest.raises(ValueError):
        dist.all_reduce(torch.ones(4, 4).expand(2, 4, 4))
    part = dist.new_group([0])
    if me == 0:
        dist.all_reduce(one, group=part)
    dist.barrier()
    dist.destroy_process_group()


def test_right_programs_work(debugged):
    debugged(2).run(equal_results)


def different_calls(world):
    """The root of a broadcast may succeed, and then waits for the exchange of the rank that fails."""
    with pytest.raises(tutti.MismatchError, match="operation 1 of group 0: "):
        dist.broadcast(torch.ones(4), 1) if world.rank else dist.all_reduce(torch.ones(4))
        dist.barrier()


def test_other_errors_have_the_numbers_that_they_have_without_checks(debugged):
    debugged(2).run(different_calls)


# ---- the other parts ----
def timeouts(world):
    def timeout_of(**options):
        return backend_of(dist.new_group(**options)).options.timeout
    assert timeout_of() == _debug.TIMEOUT
    assert timeout_of(timeout=timedelta(seconds=77)) == timedelta(seconds=77)
    assert timeout_of(pg_options=tutti.Options(timeout=timedelta(seconds=88))) == timedelta(seconds=88)
    dist.all_reduce(torch.ones(1))
    assert os.environ["TUTTI_LOG"] == "info" and _recorder.recorded(9)["entries"]


def test_timeout_recorder_and_log(debugged):
    debugged(1).run(timeouts)


@pytest.mark.parametrize("value, is_on", [("", False), ("0", False), ("1", True), ("warn", True)])
def test_values(monkeypatch, value, is_on):
    monkeypatch.setenv("TUTTI_DEBUG", value)
    assert _debug.is_on() == is_on


def test_other_value_is_refused(monkeypatch):
    monkeypatch.setenv("TUTTI_DEBUG", "yes")
    with pytest.raises(ValueError, match="TUTTI_DEBUG=yes is not allowed: use 1, or warn"):
        _debug.is_on()
