"""Tests of a Work besides waiting: its place in torch's registry, its result as a future, and the tensors that it
holds."""
import gc
import weakref

import numpy
import torch
import torch.distributed as dist


def use_registry(world):
    """torch.compile finds a Work by its tensor, in a registry that grows for ever unless waiting takes it out."""
    from torch._C._distributed_c10d import _get_work_registry_size
    before = _get_work_registry_size()
    name = dist.group.WORLD.group_name
    sums = [torch.ops._c10d_functional.all_reduce(torch.ones(3), "sum", name) for _ in range(5)]
    registered = _get_work_registry_size() - before
    for total in sums:
        assert torch.ops._c10d_functional.wait_tensor(total)[0] == world.size
    return registered, _get_work_registry_size() - before


def test_waiting_takes_a_work_out_of_the_registry(shared):
    assert shared(2).run(use_registry) == [(5, 0)] * 2


def ask_for_result(world):
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    return work.get_future_result().wait()


def test_future_result_gives_success(shared):
    """0 stands for success (torch's WorkResult)."""
    assert shared(2).run(ask_for_result) == [0, 0]


def leave_work_behind(world):
    """Returns whether the memory of a tensor is freed that an operation of a destroyed group held."""
    group, memory = dist.new_group(), numpy.ones(1000, dtype=numpy.float32)
    held = weakref.ref(memory)
    if world.rank == 0:
        dist.all_reduce(torch.from_numpy(memory), group=group, async_op=True)
    del memory
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return held() is None


def test_destroyed_group_holds_no_tensors(shared):
    assert shared(2).run(leave_work_behind) == [True] * 2
