"""Checks of operations on CUDA streams. The host of a rank runs ahead of its streams, so many checks let rank 0 enqueue
its operation and look at its streams before rank 1 makes its call."""
import ctypes
import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch_tutti
from device_checks import late, numbers, same, total
from torch_tutti._extension import load
from training import batch

LIMIT = timedelta(seconds=60)


# ---- helpers ----
def signal_rank_1(world, name):
    """Called by rank 0: await_rank_0 with this name returns on the other ranks."""
    world.store.set(f"checks/{name}", "go")


def await_rank_0(world, name):
    world.store.wait([f"checks/{name}"], LIMIT)


def opened(world, size=6):
    """Returns a tensor of the device. All ranks have opened the default group for CUDA."""
    dist.all_reduce(torch.zeros(3, device=world.kept["device"]))
    torch.cuda.synchronize()
    return numbers(world.rank, size).to(world.kept["device"])


def other_stream():
    """Returns a new stream, which is not the default group's own one. Torch hands out 32 streams in turn."""
    stream = torch.cuda.Stream()
    return stream if stream != torch_tutti.stream() else torch.cuda.Stream()


def first_on_rank_0(world, name, operation):
    """Rank 0 calls operation(), which returns what to do next. Then the other ranks call operation(), too."""
    if world.rank:
        await_rank_0(world, name)
        operation()
    else:
        look = operation()
        try:
            look()
        finally:
            signal_rank_1(world, name)


def fake_driver():
    """Returns the fake driver's library, or None on a machine with a GPU."""
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "fake_cuda_count"):
        return None
    library.fake_cuda_count.restype = ctypes.c_uint64
    return library


def count_host_waits(driver):
    """Returns how often this process has waited for a stream, an event or a device."""
    calls = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyDtoH")
    return sum(driver.fake_cuda_count(call.encode()) for call in calls)


# ---- the host does not wait ----
def check_host_goes_on(world):
    """Checks that neither a call nor wait() nor a future waits for a rank that has not made its call."""
    x, y = opened(world), opened(world)

    def operation():
        work = dist.all_reduce(x, async_op=True)
        future = work.get_future().then(lambda done: done.value()[0])
        work.wait()
        later = dist.all_reduce(y, async_op=True)
        dist.broadcast(y, 0)

        def look():
            assert not work.is_completed() and not later.is_completed()
            assert future.done() and not work.get_future_result().done()
        return look

    first_on_rank_0(world, "host_goes_on", operation)
    same(x, total(world, 6), "after wait()")
    same(y, total(world, 6), "after a blocking call")


def check_streams_of_operations(world):
    """Checks that a blocking call runs on the current stream, and an asynchronous one on that of the group."""
    x, own = opened(world), torch_tutti.stream()
    assert isinstance(own, torch.cuda.Stream) and own.device == world.kept["device"]
    assert own == torch_tutti.stream(dist.group.WORLD, own.device)
    side, other = torch.cuda.Stream(), torch.cuda.Stream()

    def asynchronous():
        with torch.cuda.stream(side):
            work = dist.all_reduce(x, async_op=True)

        def look():
            assert not own.query()
            side.synchronize()
            with torch.cuda.stream(other):
                work.wait()
            assert not other.query()
        return look

    def blocking():
        with torch.cuda.stream(side):
            dist.all_reduce(x)

        def look():
            assert not side.query()
            own.synchronize()
        return look

    first_on_rank_0(world, "asynchronous", asynchronous)
    torch.cuda.synchronize()
    first_on_rank_0(world, "blocking", blocking)
    torch.cuda.synchronize()
    same(x, total(world, 6) * world.size, "on two streams")


def check_step_has_no_host_wait(world, make_model):
    """Checks that the host waits for no stream in a step of training."""
    driver, device = fake_driver(), world.kept["device"]
    if driver is None:
        return
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # DistributedDataParallel itself waits for events in the first ten steps, to measure durations.
    inputs = [batch(step, world.rank).to(device) for step in range(12)]
    for x in inputs:
        torch.cuda.synchronize()
        waits = count_host_waits(driver)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        waits = count_host_waits(driver) - waits
    assert waits == 0, f"the host has waited {waits} times in the last step"
    torch.cuda.synchronize()


# ---- order ----
def check_several_groups(world):
    device = world.kept["device"]
    groups = [dist.new_group() for _ in range(3)]
    tensors = [late(numbers(world.rank, 100, seed=i), device) for i in range(3)]
    works = [dist.all_reduce(x, group=group, async_op=True) for x, group in zip(tensors, groups)]
    for i in (2, 0, 1):
        works[i].wait()
        same(tensors[i], total(world, 100, seed=i), f"group {i}")
    dist.all_reduce(tensors[0], group=groups[1])
    same(tensors[0], world.size * total(world, 100), "a result of another group")
    assert len({torch_tutti.stream(group).stream_id for group in groups}) == 3
    for group in groups:
        dist.destroy_process_group(group)


def check_message_after_sum(world):
    """Checks that a message, which goes through the host, follows an operation on a stream that rank 1 calls later."""
    x = opened(world)
    if world.rank:
        await_rank_0(world, "message")
        time.sleep(0.3)
    dist.all_reduce(x, async_op=True)
    if world.rank == 0:
        signal_rank_1(world, "message")
        dist.send(x, 1)
    if world.rank == 1:
        received = torch.zeros_like(x)
        dist.recv(received, 0)
        same(received, total(world, 6), "sum, message")
    torch.cuda.synchronize()


def check_message_beside_sum(world):
    """Checks that messages of other memory do not wait for operations that rank 1 calls after it has received them."""
    device = world.kept["device"]
    x, message, gathered = opened(world), numbers(world.rank, 6).to(device), torch.zeros(12, device=device)
    received, from_host = torch.zeros_like(message), torch.zeros(5, 4).t()
    torch.cuda.synchronize()

    def operations():
        dist.all_reduce(x, async_op=True)
        return dist.all_gather_into_tensor(gathered, message, async_op=True)

    if world.rank == 0:
        work = operations()
        try:
            dist.send(message, 1)
            dist.send(numbers(0, 5, 4).t(), 1)
            assert torch.cuda.current_stream().query() and not work.is_completed()
        finally:
            signal_rank_1(world, "message_beside_sum")
    else:
        dist.recv(received, 0)
        dist.recv(from_host, 0)
        same(received, numbers(0, 6), "a message beside a sum")
        same(from_host, numbers(0, 5, 4).t(), "a message of the host beside a sum")
        await_rank_0(world, "message_beside_sum")
        work = operations()
    work.wait()
    same(x, total(world, 6), "a sum beside messages")


def check_sum_after_message(world):
    """Checks that an operation on a stream follows a message into its tensor, which rank 1 sends later."""
    x = opened(world)
    if world.rank == 0:
        dist.irecv(x, 1)
    if world.rank == 1:
        time.sleep(0.3)
        dist.send(x, 0)
    dist.all_reduce(x)
    same(x, 2 * numbers(1, 6), "message, sum")


def check_next_operation_after_packed_results(world):
    """Checks that an operation follows the copies of an earlier one's results, which run on another stream."""
    x = late(numbers(world.rank, 3000), world.kept["device"])
    outputs = [torch.zeros(3000, 2, device=x.device)[:, 0] for _ in range(world.size)]
    dist.all_gather(outputs, x, async_op=True)
    dist.all_reduce(outputs[1])
    same(outputs[1], world.size * numbers(1, 3000), "a gathered tensor that is summed")
    torch.cuda.synchronize()


def check_barrier_waits(world):
    """Checks that a barrier returns when the operations on streams of all ranks are over."""
    device = world.kept["device"]
    x = late(numbers(world.rank, 60), device)
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    assert torch_tutti.stream().query()
    same(x, total(world, 60), "after a barrier")


def check_destroy_waits(world):
    """Checks that a group is destroyed only after its operations, also if another rank calls them later."""
    device = world.kept["device"]
    group = dist.new_group()
    x = late(numbers(world.rank, 60), device)
    dist.all_reduce(torch.zeros(3, device=device), group=group)
    if world.rank:
        await_rank_0(world, "destroy")
        time.sleep(2.5)
    dist.all_reduce(x, group=group)
    if world.rank == 0:
        signal_rank_1(world, "destroy")
    dist.destroy_process_group(group)
    same(x, total(world, 60), "after its group")


# ---- other ways to call, and tools that observe calls ----
def check_functional_collectives(world):
    """Checks that collectives of torch.compile wait on the stream, and leave no Work in torch's table."""
    from torch._C._distributed_c10d import _get_work_registry_size as registered
    functional = torch.ops._c10d_functional
    x, name = late(numbers(world.rank, 30), world.kept["device"]), dist.group.WORLD.group_name
    before = registered()
    outcomes = [functional.wait_tensor(functional.all_reduce(x, "sum", name)),
                functional.wait_tensor(functional.all_gather_into_tensor(x, world.size, name))]
    assert registered() == before
    same(outcomes[0], total(world, 30), "a functional sum")
    same(outcomes[1], torch.cat([numbers(rank, 30) for rank in range(world.size)]), "a functional gather")


def check_profiler(world):
    x = opened(world)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        torch.cuda.synchronize()
        dist.barrier()
    names = [event.name for event in profile.events()]
    assert names.count("tutti:all_reduce") == 2, names


def check_recorder(world):
    """Checks the flight recorder's entry of a running operation, and of one that is over."""
    x = opened(world)

    def newest():
        return load()._recorded(1)[1][0]

    def operation():
        dist.all_reduce(x, async_op=True)

        def look():
            entry = newest()
            assert entry["profiling_name"] == "tutti:all_reduce" and entry["input_sizes"] == [[6]]
            assert entry["ended_ns"] == 0
        return look

    first_on_rank_0(world, "recorder", operation)
    entry_of_sum = newest()["record_id"]
    dist.barrier()
    entry = next(one for one in load()._recorded(2)[1] if one["record_id"] == entry_of_sum)
    until = time.monotonic() + 60
    while not entry["ended_ns"]:
        assert time.monotonic() < until
        entry = next(one for one in load()._recorded(2)[1] if one["record_id"] == entry_of_sum)
    assert entry["status"] == 0 and not entry["failure"]


def check_estimate(world):
    """Checks that an estimate runs nothing, also before the group is open for CUDA."""
    group = dist.new_group()
    backend, x = group._get_backend(world.kept["device"]), opened(world)
    if world.rank == 0:
        backend._start_time_estimate()
        dist.all_reduce(x, group=group)
        assert backend._end_time_estimate() > 0
    dist.all_reduce(x, group=group)
    same(x, total(world, 6), "after an estimate")


def check_groups_of_some_ranks(world):
    device = world.kept["device"]
    alone, split = [dist.new_group([rank]) for rank in range(world.size)], dist.new_group(list(range(world.size))[::-1])
    x = late(numbers(world.rank, 30), device)
    dist.all_reduce(x, group=alone[world.rank])
    same(x, numbers(world.rank, 30), "in a group of one rank")
    dist.all_reduce(x, group=split, async_op=True).wait()
    same(x, total(world, 30), "in another group")
    assert torch_tutti.stream(alone[world.rank]) and torch_tutti.stream(split)


def check_threads(world):
    """Checks two threads, each with a group and a stream of its own."""
    device, problems = world.kept["device"], []
    groups = [dist.new_group() for _ in range(2)]

    def run(group, seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(10):
                    x = late(numbers(world.rank, 200, seed=seed + step), device)
                    dist.all_reduce(x, group=group, async_op=step % 2 == 0)
                    dist.all_reduce(x, group=group)
                    same(x, world.size * total(world, 200, seed=seed + step), f"step {step}")
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(group, 3 * i)) for i, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT.total_seconds())
    assert not problems and not any(thread.is_alive() for thread in threads), problems


def check_threads_of_one_group(world):
    """Checks two threads that start operations of one group, of this rank alone, on the same memory."""
    device, problems = world.kept["device"], []
    group = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    x = late(numbers(world.rank, 200), device)
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()

    def run():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(20):
                    dist.all_reduce(x, group=group, async_op=step % 2 == 0)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT.total_seconds())
    assert not problems and not any(thread.is_alive() for thread in threads), problems
    torch.cuda.synchronize()
    same(x, numbers(world.rank, 200), "summed by two threads")


def check_forked_child(world):
    """Checks that a forked child gets an error from a barrier of its parent's group, and can end."""
    opened(world)
    child = os.fork()
    if child == 0:
        try:
            dist.barrier()
        except torch_tutti.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_reconfigure(world):
    """Checks that the group opens for CUDA again after a change of its members."""
    x = opened(world)
    dist.all_reduce(x, async_op=True).wait()
    handles = [None] * world.size
    dist.all_gather_object(handles, torch_tutti.reconfigure_handle())
    torch.cuda.synchronize()
    torch_tutti.reconfigure(handles, uuid=1)
    dist.all_reduce(x)
    same(x, world.size * total(world, 6), "before and after a change")
    assert torch_tutti.stream() is not None


CHECKS = [check_host_goes_on, check_streams_of_operations, check_next_operation_after_packed_results,
          check_several_groups,
          check_message_after_sum, check_message_beside_sum, check_sum_after_message, check_barrier_waits,
          check_destroy_waits, check_functional_collectives, check_profiler, check_estimate,
          check_groups_of_some_ranks, check_threads, check_threads_of_one_group, check_forked_child]
