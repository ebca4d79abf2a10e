"""Tests of tags (`tutti.options(tag=…)`), of the line of an asynchronous call in its error, of the stacks in a trace,
and of the pages of torch's debug server."""
import json
import re
import subprocess
import sys
import threading
import urllib.request
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT_S
from test_flight_recorder import recorded  # noqa: F401  a fixture
from test_status import await_file, awaited, start
from torch._C import _distributed_c10d as c10d
from torch.profiler import ProfilerActivity, profile

import torch_tutti as tutti
from torch_tutti import _tags, cli


def rank_1_is_late(world, path):
    if world.rank == 1:
        return await_file(path)
    try:
        with tutti.options(tag="layer 3", timeout=timedelta(seconds=1)):
            work = dist.all_reduce(torch.ones(8), async_op=True)
        with pytest.raises(tutti.TimeoutError) as error:
            work.wait()
        return str(error.value)
    finally:
        path.touch()


def test_error_of_asynchronous_call_has_tag_and_lines(recorded, tmp_path, capsys):  # noqa: F811
    text = recorded(2).run(rank_1_is_late, tmp_path / "done")[0]
    assert re.search(r'rank 1 .*python/test_status.py:\d+ \(await_file\)', text)
    place = r"python/test_tags.py:\d+ \(rank_1_is_late\)"
    assert re.search(rf' \(tag "layer 3"\) \(this rank started it at {place}\)$', text)
    assert cli.main(["trace", str(recorded.folder), "--stacks"]) == 0
    report = capsys.readouterr().out
    assert re.search(r'rank 0 failed in operation 1: all_reduce \[8\] float "layer 3" \(rank_1_is_late, ', report)
    assert re.search(r"rank 0, thread MainThread:\n(  .*\n)*  .*/test_tags.py:\d+ \(rank_1_is_late\)\n", report)
    assert "rank 0, thread tutti-stacks:\n" in report


def reduce_with_tag(world, path):
    if world.rank == 1:
        await_file(path)
    with tutti.options(tag="layer 4"), tutti.options(timeout=timedelta(seconds=30)):
        dist.all_reduce(torch.ones(8))


def test_status_shows_the_tag(fresh, tmp_path):
    ranks = fresh(2)
    start(ranks, reduce_with_tag, tmp_path / "go")
    try:
        awaited(ranks, r'rank 0 .* at python/test_tags.py:\d+ \(reduce_with_tag\), tag "layer 4"')
    finally:
        (tmp_path / "go").touch()
    assert not any(outcome.failed for outcome in ranks.collect(LIMIT_S))


def ranges(world):
    x = torch.ones(4)
    with profile(activities=[ProfilerActivity.CPU]) as seen, tutti.options(tag="layer 5"):
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
    names = [event.name for event in seen.events()]
    assert names.count("tutti:all_reduce (layer 5)") == 2 and "tutti:all_reduce" not in names


def test_profile_shows_the_tag(shared):
    shared(2).run(ranges)


@pytest.mark.parametrize("tag", ["x" * 61, "two\nlines", 'a "quote"'])
def test_wrong_tag_is_refused(tag):
    with pytest.raises(ValueError, match="options: a tag has at most 60 printable characters"):
        tutti.options(tag=tag)


def test_blocks_of_the_main_thread_are_known():
    with tutti.options(tag="outer"):
        with tutti.options(tag="inner"), tutti.options():
            assert _tags.innermost() == "inner"
            other = threading.Thread(target=lambda: tutti.options(tag="other").__enter__())
            other.start()
            other.join()
            assert _tags.innermost() == "inner"
        assert _tags.innermost() == "outer"
    assert _tags.innermost() == ""


def ask_worker_server(world):
    server = c10d._WorkerServer("127.0.0.1", 0)
    with tutti.options(tag="layer 6"):
        dist.all_reduce(torch.ones(4))

    def page(name):
        url = f"http://127.0.0.1:{server.port}/handler/{name}"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
            return json.load(answer)
    trace, status = page("tutti_trace_json"), page("tutti_status_json")
    server.shutdown()
    assert [entry["tag"] for entry in trace["entries"]] == ["layer 6"] and trace["rank"] == 0
    assert status["jobs"][0]["groups"][0]["ranks"][0]["calls"] == 1


def test_debug_server_has_pages_of_tutti(recorded):  # noqa: F811
    recorded(1).run(ask_worker_server)


def test_program_with_pages_ends_well():
    """torch destroys the functions of pages after the interpreter has ended."""
    program = """
import torch.distributed as dist
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 0
