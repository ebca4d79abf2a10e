"""Tests of the settings of the flight recorder: it is off by default, wrong numbers are refused, and its file is where
torch would write it."""
import pytest
import torch.distributed as dist

import torch_tutti as tutti
from torch_tutti import _recorder


def is_off(world):
    with pytest.raises(RuntimeError, match="the flight recorder is off; set TORCH_FR_BUFFER_SIZE"):
        tutti.dump_trace()
    assert _recorder.recorded(9)["entries"] == []


def test_recorder_is_off_by_default(shared):
    shared(2).run(is_off)


def badly_set(world):
    with pytest.raises(ValueError, match="TORCH_NCCL_TRACE_BUFFER_SIZE must be a number of operations, 0 or"):
        dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=world.size)


@pytest.mark.parametrize("number", ["many", "-5"])
def test_wrong_number_is_refused(fresh, number):
    fresh(1, join=False, environment={"TORCH_NCCL_TRACE_BUFFER_SIZE": number}).run(badly_set)


def test_file_without_a_variable_is_where_torch_puts_it(monkeypatch):
    for name in _recorder.FILE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(_recorder, "rank", lambda: 7)
    assert _recorder._default_path() == "/somewhere/torch/comm_lib_trace_rank_7"
