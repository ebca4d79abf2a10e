"""Tests of the profile of an operation: torch's profiler has one range with its name and the shapes, inside
record_param_comms with sizes, type and group; and a program can ask how long an operation took."""
import json

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile


def every_operation(world):
    x, p, me = torch.ones(6), world.size, world.rank
    rows = torch.ones(p, 3)
    parts = [torch.empty(6) for _ in range(p)]
    root_only = parts if me == 0 else None
    calls = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "reduce": lambda: dist.reduce(x, 0),
        "all_gather": lambda: dist.all_gather(parts, x),
        "_all_gather_base": lambda: dist.all_gather_into_tensor(torch.empty(6 * p), x),
        "_reduce_scatter_base": lambda: dist.reduce_scatter_tensor(torch.empty(3), rows),
        "reduce_scatter": lambda: dist.reduce_scatter(x, parts),
        "gather": lambda: dist.gather(x, root_only, dst=0),
        "scatter": lambda: dist.scatter(x, root_only, src=0),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(rows), rows),
        "barrier": lambda: dist.barrier(),
        "send" if me else "recv": lambda: dist.send(x, 0) if me else dist.recv(x, 1),
    }
    if me == 0:
        calls["recvAnySource"] = lambda: dist.recv(x)
    else:
        calls[""] = lambda: dist.send(x, 0)
    return calls


def check_titles(world, folder):
    for wanted, call in every_operation(world).items():
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            call()
        names = [event.name for event in profiled.events() if event.name.startswith("tutti:")]
        assert names == [f"tutti:{wanted or 'send'}"], names
    x = torch.ones(4, 3)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(x, async_op=True).wait()
    event = next(event for event in profiled.events() if event.name == "tutti:all_reduce")
    assert event.input_shapes == [[4, 3]] and event.is_async
    path = f"{folder}/trace-{world.rank}.json"
    profiled.export_chrome_trace(path)
    with open(path) as file:
        return [e["args"] for e in json.load(file)["traceEvents"] if e.get("name") == "record_param_comms"]


def test_ranges_have_names_shapes_and_groups(shared, tmp_path):
    for recorded in shared(2).run(check_titles, str(tmp_path)):
        assert len(recorded) == 1
        seen = {key.lower(): value for key, value in recorded[0].items()}
        assert seen["collective name"] == "all_reduce" and seen["dtype"] == "Float"
        assert seen["in msg nelems"] == seen["out msg nelems"] == 12 and seen["group size"] == 2
        assert seen["process group name"] == "0" and seen["process group description"] == "default_pg"
        assert (seen["global rank start"], seen["global rank stride"]) == (0, 1)


def check_durations(world):
    with pytest.MonkeyPatch.context() as patch:
        # From torch 2.15 on, torch's recorder switches durations on.
        patch.setenv("TORCH_FR_BUFFER_SIZE", "0")
        group = dist.new_group()
    work = dist.all_reduce(torch.ones(10), group=group, async_op=True)
    work.wait()
    with pytest.raises(RuntimeError, match="enable_collectives_timing"):
        work._get_duration()
    group._enable_collectives_timing()
    works = [dist.all_reduce(torch.ones(10), group=group, async_op=True), dist.barrier(group=group, async_op=True)]
    for work in works:
        work.wait()
        assert work._get_duration() > 0
    dist.destroy_process_group(group)


def test_work_has_a_duration_if_timing_is_enabled(shared):
    shared(2).run(check_durations)
