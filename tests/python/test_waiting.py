"""Tests of the counters of `tutti.waiting()`, on a rank that waits for another."""
import threading
import time

import torch
import torch.distributed as dist
import torch_tutti as tutti


def asleep(world, what):
    """Runs an all-reduce that rank 0 starts when rank 1 has slept in it. Returns the increments of this rank's
    counters. After a late yield, which other programs may have caused, a thread does not yield for 50 ms."""
    time.sleep(0.1)
    x, before = torch.ones(2), tutti.waiting()

    def watch():
        while tutti.waiting()["sleeps"] == before["sleeps"]:
            pass
        world.store.set(what, "has slept")

    if world.rank == 0:
        world.store.wait([what])
        dist.all_reduce(x)
    else:
        watcher = threading.Thread(target=watch)
        watcher.start()
        dist.all_reduce(x)
        watcher.join()
    assert x.tolist() == [world.size] * 2
    return {name: count - before[name] for name, count in tutti.waiting().items()}


def test_rank_that_waits_long_yields_and_sleeps(shared):
    waited = shared(2).run(asleep, "test_waiting")[1]
    assert waited["yields"] > 0 and waited["sleeps"] > 0 and waited["asleep_ns"] > 0, waited
    assert waited["late"] <= waited["timed_out"] <= waited["sleeps"], waited


def test_counters_are_numbers_by_name():
    counted = tutti.waiting()
    assert list(counted) == ["yields", "sleeps", "asleep_ns", "timed_out", "late", "naps", "wakes"]
    assert all(isinstance(count, int) for count in counted.values())
