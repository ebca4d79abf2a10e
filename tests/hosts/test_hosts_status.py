"""Tests of `tutti status` and of the text of a timeout over two hosts: what one host says of a rank of the other."""
import os
import re
import signal
import time

import pytest
import torch
import torch.distributed as dist
from across import BACKEND, await_status
from ranks import LIMIT_S

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")


def await_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def reduce_late(world, late, path):
    if world.rank in late:
        await_file(path)
    dist.all_reduce(torch.ones(1000))


@pytest.mark.parametrize("late", [0, 1])
def test_status_names_the_late_rank_of_another_host(lab, fresh, tmp_path, late):
    some, go = fresh(0, 1), str(tmp_path / "go")
    some.begin(reduce_late, [late], go)
    waits = r"in call 1: allreduce\(1000 x float32, sum, algorithm \w+\) for \d+\.\d s, at .*\(reduce_late\)"
    waited_for = rf"rank {late} .* on h{late} no collective yet, at .*test_hosts_status.py:\d+ \(await_file\)"
    report = await_status(lab, 1 - late, waited_for, f"rank {1 - late} .* {waits}",
                          f"=> the others wait for rank {late}")
    # The late rank's host shows the same.
    assert report.splitlines()[-1] == await_status(lab, late, f"rank {1 - late} .* {waits}").splitlines()[-1]
    open(go, "w").close()
    assert not any(outcome.failed for outcome in some.collect(LIMIT_S))


def test_status_names_the_rank_of_another_host_that_does_not_answer(lab, fresh, tmp_path):
    some, go = fresh(0, 1), str(tmp_path / "go")
    some.begin(reduce_late, [1], go)
    some.signal(1, signal.SIGSTOP)
    await_status(lab, 0, "rank 1 .* on h1 has not answered",
                 "no rank that answers is late; rank 1 of other hosts did not")
    some.signal(1, signal.SIGCONT)
    open(go, "w").close()
    assert not any(outcome.failed for outcome in some.collect(LIMIT_S))


def test_timeout_names_the_line_of_the_late_rank_of_another_host(fresh, tmp_path):
    some, go = fresh(0, 1, timeout_s=3), str(tmp_path / "go")
    some.begin(reduce_late, [1], go)
    outcomes = some.collect(LIMIT_S, [0])
    open(go, "w").close()
    outcomes += some.collect(LIMIT_S, [1])
    assert [outcome.error for outcome in outcomes] == ["TimeoutError"] * 2, outcomes
    place = r"not been made by rank 1; rank 1 is at \S*test_hosts_status.py:\d+ \(await_file\)"
    assert all(re.search(place, outcome.text) for outcome in outcomes), outcomes
