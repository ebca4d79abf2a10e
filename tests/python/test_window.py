"""Tests of one-sided windows of torch 2.14: puts, signals and mapped tensors. With an older torch these tests are
skipped."""
import os
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti
from members import Member

pytestmark = pytest.mark.skipif(not hasattr(dist, "_new_window"), reason="torch before 2.14")
TYPES = ["float32", "float64", "bfloat16", "int64", "uint8", "bool", "complex64"]


def memory(count, kind="shared", dtype=torch.float32):
    made = torch_tutti.empty(count, dtype=dtype) if kind == "shared" else torch.empty(count, dtype=dtype)
    return made.zero_()


def neighbours(world):
    return (world.rank + 1) % world.size, (world.rank - 1) % world.size


# ---- puts and signals ----
def put_in_a_ring(world, kind, name, async_op):
    dtype = getattr(torch, name)
    after, before = neighbours(world)
    mine = memory(1000, kind, dtype)
    window = dist._new_window(mine)
    source = (torch.arange(500) % 2 + world.rank).to(dtype)
    works = [window.put(source, after, 400, async_op), window.signal(after, async_op),
             window.wait_signal(before, async_op)]
    for work in works:
        work.wait()
    window.tensor_deregister()
    expected = torch.zeros(1000, dtype=dtype)
    expected[400:900] = (torch.arange(500) % 2 + before).to(dtype)
    return torch.equal(mine, expected) and all(work.is_completed() for work in works)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("kind", ["shared", "private"])
@pytest.mark.parametrize("name", TYPES)
def test_puts_in_a_ring_arrive(shared, kind, name, async_op):
    for size in 2, 3:
        assert all(shared(size).run(put_in_a_ring, kind, name, async_op))


def put_columns(world):
    """Inputs that are not contiguous arrive in the order of their indices."""
    after, before = neighbours(world)
    mine = memory(6)
    window = dist._new_window(mine)
    window.put((torch.arange(6.).view(2, 3) + world.rank).t(), after, 0, False)
    window.signal(after, False)
    window.wait_signal(before, False)
    window.tensor_deregister()
    return (mine - before).tolist()


def test_put_of_a_transposed_tensor_keeps_its_order(shared):
    assert shared(2).run(put_columns) == [[0, 3, 1, 4, 2, 5]] * 2


def put_much(world, kind):
    """Each rank writes its part of all windows, in many puts of which only the last is signalled."""
    count = 300_000
    mine = memory(count * world.size, kind)
    window = dist._new_window()
    window.tensor_register(mine)
    for value in range(1, 11):
        for rank in range(world.size):
            window.put(torch.full((count,), float(value)), rank, count * world.rank, True)
    for rank in range(world.size):
        window.signal(rank, False)
    for rank in range(world.size):
        window.wait_signal(rank, False)
    right = bool((mine == 10).all())
    window.tensor_deregister()
    return right


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_a_signal_follows_its_puts(shared, kind):
    assert all(shared(3).run(put_much, kind))


def deregister_without_signals(world, kind):
    window = dist._new_window()
    found = []
    for round in range(5):
        mine = memory(world.size, kind)
        window.tensor_register(mine)
        for rank in range(world.size):
            window.put(torch.full((1,), float(round + world.rank)), rank, world.rank, False)
        window.tensor_deregister()
        found.append(mine.tolist() == [float(round + rank) for rank in range(world.size)])
    return found


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_deregistering_waits_for_puts(shared, kind):
    for found in shared(3).run(deregister_without_signals, kind):
        assert found == [True] * 5


def signals_count(world):
    window = dist._new_window(memory(1))
    after, before = neighbours(world)
    for _ in range(3):
        window.signal(after, False)
    for _ in range(3):
        window.wait_signal(before, False)
    pending = window.wait_signal(before, True)
    dist.barrier()
    early = pending.is_completed()
    dist.barrier()
    window.signal(after, False)
    pending.wait()
    window.tensor_deregister()
    return early


def test_each_signal_ends_one_wait(shared):
    assert shared(2).run(signals_count) == [False, False]


def wait_in_a_thread(world):
    """A wait for this rank's own signal would never end if it kept the interpreter."""
    window = dist._new_window(memory(1))
    ready = threading.Event()

    def wait():
        ready.set()
        window.wait_signal(world.rank, False)

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    window.signal(world.rank, False)
    thread.join()
    window.tensor_deregister()
    return True


def test_a_wait_lets_other_threads_run(shared):
    assert all(shared(2).run(wait_in_a_thread))


# ---- mapped tensors ----
def map_tensors(world, kind):
    mine = memory(6, kind).view(2, 3)
    mine += world.rank
    window = dist._new_window(mine)
    dist.barrier()
    found = []
    for rank in range(world.size):
        attribute = window.get_attr(rank).access_type.name
        try:
            mapped = window.map_remote_tensor(rank)
            found.append((attribute, mapped.shape == (2, 3) and bool((mapped == rank).all())))
        except NotImplementedError as error:
            found.append((attribute, str(error)))
    dist.barrier()
    window.tensor_deregister()
    return found


@pytest.mark.one_host("on several hosts ranks cannot map what others have")
def test_shared_memory_is_mapped(shared):
    assert shared(2).run(map_tensors, "shared") == [[("UNIFIED", True)] * 2] * 2


def test_other_memory_is_not_mapped(shared):
    for rank, found in enumerate(shared(2).run(map_tensors, "private")):
        assert found[rank] == ("UNIFIED", True)
        attribute, text = found[1 - rank]
        assert attribute == "SEPARATE"
        assert f"rank {rank} of group 0 cannot map the window of rank {1 - rank}: " in text
        assert "allocate it with tutti_mem_alloc (in Python torch_tutti.empty)" in text or "on another host" in text


def keep_a_mapped_tensor(world):
    mine = memory(4).fill_(world.rank)
    window = dist._new_window(mine)
    mapped = window.map_remote_tensor(1 - world.rank)
    dist.barrier()
    mapped[0] = 7
    dist.barrier()
    window.tensor_deregister()
    del window
    values = mine[0].item(), mapped[1].item()
    dist.destroy_process_group()
    mapped.sum()
    return values


@pytest.mark.one_host("on several hosts ranks cannot map what others have")
def test_a_mapped_tensor_outlives_the_group(fresh):
    assert fresh(2).run(keep_a_mapped_tensor) == [(7, 1), (7, 0)]


def owning(world):
    window = dist._new_window()
    window.tensor_register(memory(3))
    owned = window.map_remote_tensor(world.rank)
    owned += 1
    window.tensor_deregister()
    mine = memory(3)
    window.tensor_register(mine, owning=False)
    with pytest.raises(ValueError) as raised:
        window.map_remote_tensor(world.rank)
    window.put(torch.ones(1), world.rank, 2, False)
    window.tensor_deregister()
    return owned.tolist(), mine.tolist(), str(raised.value)


def test_tensor_registered_without_owning_is_not_mapped(shared):
    for rank, (owned, mine, text) in enumerate(shared(2).run(owning)):
        assert owned == [1, 1, 1] and mine == [0, 0, 1]
        assert f"rank {rank} has registered its tensor with owning=False; use the tensor" in text


# ---- refused calls ----
def text_of(kind, call, *arguments):
    with pytest.raises(kind) as raised:
        call(*arguments)
    return str(raised.value)


def refusals(world):
    window = dist._new_window()
    source = torch.ones(3)
    found = {"before": text_of(ValueError, window.put, source, 0, 0, False),
             "strided": text_of(ValueError, window.tensor_register, torch.ones(4, 4).t())}
    window.tensor_register(memory(10))
    found |= {
        "twice": text_of(ValueError, window.tensor_register, memory(10)),
        "beyond": text_of(ValueError, window.put, source, 0, 8, False),
        "negative": text_of(ValueError, window.put, source, 0, -1, False),
        "far": text_of(ValueError, window.put, source, 0, 2**62, False),
        "type": text_of(ValueError, window.put, source.double(), 0, 0, False),
        "put": text_of(ValueError, window.put, source, world.size, 0, True),
        "signal": text_of(ValueError, window.signal, -1, False),
        "wait": text_of(ValueError, window.wait_signal, 2**40, False),
        "map": text_of(ValueError, window.map_remote_tensor, 9),
        "attr": text_of(ValueError, window.get_attr, 9)}
    window.tensor_deregister()
    found["after"] = text_of(ValueError, window.signal, 0, False)
    found["again"] = text_of(ValueError, window.tensor_deregister)
    dist.barrier()
    return found


def test_wrong_calls_are_refused(shared):
    for found in shared(2).run(refusals):
        assert "put: the window has no tensor; call tensor_register first, on all ranks" in found["before"]
        assert "tensor_register: the window tensor is not contiguous" in found["strided"]
        assert "the window has a tensor already; call tensor_deregister first" in found["twice"]
        assert "a put of 3 elements at element 8 passes the end of the window, which has 10" in found["beyond"]
        assert "the offset is -1; it counts elements and is at least 0" in found["negative"]
        assert "passes the end of the window" in found["far"]
        assert "put: the input is float64, but the window of rank 0 is float32" in found["type"]
        assert "put: rank 2 is not a rank of the group, which has ranks 0 to 1" in found["put"]
        assert "signal: rank -1 is not a rank of the group" in found["signal"]
        assert "wait_signal: rank 1099511627776 is not a rank" in found["wait"]
        assert "rank 9 is not a rank" in found["map"] and "rank 9 is not a rank" in found["attr"]
        assert "signal: the window has no tensor" in found["after"]
        assert "tensor_deregister: the window has no tensor" in found["again"]


def registers_differently(world):
    size = text_of(torch_tutti.MismatchError, dist._new_window, memory(10 - world.rank))
    dtype = torch.int32 if world.rank else torch.float32
    type_ = text_of(torch_tutti.MismatchError, dist._new_window, memory(10, dtype=dtype))
    window = dist._new_window(memory(10))
    window.tensor_deregister()
    return size, type_


def test_ranks_that_register_other_tensors_get_an_error(shared):
    for size, type_ in shared(2).run(registers_differently):
        assert "rank 0 registers 40 bytes and rank 1 36; all ranks must register the same size" in size
        assert "rank 0 registers float32 elements and rank 1 int32; all ranks must register the same type" in type_


def drops_its_window(world, kind):
    mine = memory(3, kind)
    window = dist._new_window(mine)
    dist.barrier()
    if world.rank == 1:
        del window
        return [], mine.tolist()
    # The refused wait shows that this rank knows of the dropped window, so the calls after it are also refused.
    calls = [lambda: window.wait_signal(1, False), lambda: window.put(torch.ones(3), 1, 0, False),
             lambda: window.put(torch.ones(3), 1, 0, True).wait(), lambda: window.signal(1, False)]
    texts = [text_of(ValueError, call) for call in calls]
    with pytest.raises((ValueError, NotImplementedError)):
        window.map_remote_tensor(1)
    return texts, mine.tolist()


def drop_and_continue(world, kind):
    found = drops_its_window(world, kind)
    total = torch.ones(1)
    dist.all_reduce(total)
    return *found, total.item()


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_calls_to_a_dropped_window_are_refused(fresh, kind):
    (texts, _, total), (_, mine, _) = fresh(2).run(drop_and_continue, kind)
    assert "rank 1 of group 0 has freed its window (number 1), so rank 0 gets no more signals of it" in texts[0]
    for text in texts[1:]:
        assert "rank 1 of group 0 has freed its window (number 1), so rank 0 can no longer write it" in text
        assert "all ranks must deregister a window together" in text
    assert mine == [0, 0, 0] and total == 2


def drop_after_signals(world, kind):
    mine = memory(100_000, kind)
    window = dist._new_window(mine)
    if world.rank:
        window.put(torch.ones(100_000), 0, 0, False)
        window.signal(0, False)
        del window
        dist.barrier()
        return ""
    window.wait_signal(1, False)
    assert bool((mine == 1).all())
    text = text_of(ValueError, window.wait_signal, 1, False)
    dist.barrier()
    return text


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_signals_before_the_drop_of_a_window_arrive(fresh, kind):
    assert "so rank 0 gets no more signals of it" in fresh(2).run(drop_after_signals, kind)[0]


def deregister_alone(world, kind):
    window = dist._new_window(memory(3, kind))
    dist.barrier()
    if world.rank == 1:
        del window
        return ""
    return text_of(torch_tutti.MismatchError, window.tensor_deregister)


@pytest.mark.parametrize("kind", ["shared", "private"])
def test_deregistering_a_dropped_window_is_an_error(fresh, kind):
    texts = fresh(3).run(deregister_alone, kind)
    for rank in 0, 2:
        assert "rank 1 of group 0 has freed its window (number 1), but rank " in texts[rank]


# ---- failures ----
def waits_without_a_signal(world, with_options):
    """Rank 1 keeps its window as long as its process lives."""
    window = world.kept["window"] = dist._new_window(memory(3))
    if world.rank:
        return ""
    options = torch._C._distributed_c10d.WaitSignalOptions()
    if with_options:
        options.timeout = timedelta(milliseconds=300)
    return text_of(torch_tutti.TimeoutError, window.wait_signal, 1, False, options)


@pytest.mark.parametrize("with_options", [False, True])
def test_wait_without_a_signal_reaches_its_timeout(fresh, with_options):
    text = fresh(2, timeout_s=60 if with_options else 1).run(waits_without_a_signal, with_options)[0]
    limit = 300 if with_options else 1000
    assert f"reached the timeout of {limit} ms in a wait for a signal of rank 1: it sent no signal" in text


def peer_dies(world, kind, what):
    window = dist._new_window(memory(1 << 20, kind))
    if world.rank == 1:
        window.wait_signal(0, False)
        os.kill(os.getpid(), signal.SIGKILL)
    source = torch.ones(1 << 20)

    def put_until_failure():
        while True:
            window.put(source, 1, 0, False)

    if world.rank == 0:
        window.signal(1, False)
    call = put_until_failure if what == "put" else lambda: window.wait_signal(1, False)
    text = text_of(torch_tutti.PeerError, call)
    text_of(torch_tutti.PeerError, window.tensor_deregister)
    return text


@pytest.mark.parametrize("what", ["put", "wait"])
@pytest.mark.parametrize("kind", ["shared", "private"])
def test_death_of_a_peer_is_an_error(fresh, kind, what):
    outcomes = fresh(3).outcomes(peer_dies, kind, what)
    assert outcomes[1].died == -signal.SIGKILL
    for rank in 0, 2:
        assert not outcomes[rank].failed, outcomes[rank].trace
        assert "rank 1 of group 0" in outcomes[rank].value and "died" in outcomes[rank].value


def wait_through_a_change(world):
    """An open wait ends with the membership, and the window is refused afterwards."""
    member = Member(world, "tutti")
    member.change(900, member.collect("first"))
    window = dist._new_window(memory(3))
    pending = window.wait_signal((world.rank + 1) % 2, True)
    member.change(901, member.collect("second"))
    open_text = text_of(torch_tutti.AbortedError, pending.wait)
    late_text = text_of(torch_tutti.AbortedError, window.put, torch.ones(1), 0, 0, False)
    member.meet("done")
    return open_text, late_text


def test_window_ends_with_the_membership(fresh):
    for open_text, late_text in fresh(2, join=False).run(wait_through_a_change):
        assert "was aborted, or destroyed while operations ran" in open_text
        assert "put: the members of the group have changed since tensor_register; make a new window" in late_text


def closed_group(world):
    window = dist._new_window(memory(3))
    dist.barrier()
    dist.destroy_process_group()
    return text_of(torch_tutti.AbortedError, window.signal, 0, False)


def test_window_of_a_destroyed_group_is_refused(fresh):
    for text in fresh(2).run(closed_group):
        assert "signal: this group was shut down or destroyed" in text


def supports(world):
    return dist._supports_window()


def test_torch_sees_that_windows_are_supported(shared):
    assert all(shared(2).run(supports))
