"""Tests of making groups: one rank, several groups, other stores, ranks that are threads of one process, options,
splitting, sequence numbers."""
import contextlib
import copy
import ctypes
import datetime
import gc
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

import torch_tutti
from ranks import by_name


# ---- one rank ----
def alone(world):
    dist.init_process_group("tutti", store=world.store, rank=0, world_size=1)
    x = torch.arange(5.0)
    dist.all_reduce(x)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    lists = [torch.empty(5)]
    dist.all_gather(lists, x)
    out = torch.empty(5)
    dist.reduce_scatter(out, [x])
    assert torch.equal(out, x) and torch.equal(lists[0], x) and torch.equal(x, torch.arange(5.0))
    dist.gather(x, lists, dst=0)
    dist.scatter(out, [x + 1], src=0)
    assert torch.equal(out, x + 1)
    dist.all_to_all_single(out, x)
    dist.all_to_all(lists, [x])
    assert torch.equal(out, x)
    dist.barrier()
    assert dist.all_reduce(x, async_op=True).get_future().wait()[0][4] == 4
    everything = [None]
    dist.all_gather_object(everything, "me")
    assert everything == ["me"]


def test_collectives_of_one_rank(fresh):
    fresh(1, join=False).run(alone)


# ---- several groups ----
def several(world):
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 0])]
    for number, ranks in enumerate(([0, 1], [1, 2], [2, 0])):
        if world.rank in ranks:
            x = torch.full((3,), float(world.rank))
            dist.all_reduce(x, group=pairs[number])
            assert x[0] == sum(ranks)
            dist.broadcast(x, ranks[0], group=pairs[number])
    for group in pairs:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()
    many = [dist.new_group() for _ in range(20)]
    for group in many:
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert x[0] == world.size
    # Only members make the call.
    if world.rank < 2:
        local = dist.new_group([0, 1], use_local_synchronization=True)
        dist.barrier(group=local)
    dist.barrier()


def test_groups_overlap_and_are_many(fresh):
    fresh(3).run(several)


def again(world):
    for turn in range(3):
        dist.init_process_group("tutti", store=dist.PrefixStore(str(turn), world.store), rank=world.rank,
                                world_size=world.size)
        x = torch.ones(1000)
        dist.all_reduce(x)
        assert x[0] == world.size
        dist.destroy_process_group()


def test_group_is_made_again_after_destroying(fresh):
    fresh(2, join=False).run(again)


def splits(world):
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for name in ("data", "model"):
        x = torch.tensor([float(world.rank)])
        dist.all_reduce(x, group=mesh.get_group(name))
        members = [world.rank % 2, world.rank % 2 + 2] if name == "data" else [world.rank // 2 * 2,
                                                                               world.rank // 2 * 2 + 1]
        assert x.item() == sum(members)
    part = dist.group.WORLD.split_group([1, 3], datetime.timedelta(seconds=20), None, "odd", "odd ranks")
    if world.rank in (1, 3):
        x = torch.ones(1)
        work = part.allreduce([x])
        work.wait()
        assert x.item() == 2
    dist.barrier()


def test_mesh_and_split_groups_reduce(fresh):
    fresh(4).run(splits)


# ---- stores ----
def over_tcp(world, port):
    store = dist.TCPStore("127.0.0.1", port, world.size, world.rank == 0)
    dist.init_process_group("tutti", store=store, rank=world.rank, world_size=world.size)
    x = torch.ones(10)
    dist.all_reduce(x)
    assert x[0] == world.size
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    groups = [torch_tutti.ProcessGroupTutti(dist.PrefixStore(str(i), store), world.rank, world.size,
                                            datetime.timedelta(seconds=30)) for i in range(5)]
    dist.barrier()
    # Each group leaves two keys.
    assert store.num_keys() == before + 2 * len(groups)
    for group in groups:
        group.shutdown()


def test_tcp_store_keeps_two_keys_of_each_group(fresh):
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fresh(3, join=False).run(over_tcp, port)


def reachable_address():
    """Returns the IPv4 address at which others reach this host, or None if it has none."""
    import socket
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # This sends nothing.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def listening():
    """Returns the IPv4 addresses at which this process accepts TCP connections, as /proc/net/tcp writes them."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    with open("/proc/self/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]


def join_several_starts(world, host, port):
    """Returns whether this rank listens for other hosts: if each rank was started alone on its host, and if both were
    started together."""
    found = []
    for ranks in "1", "2":
        os.environ.update(WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks)
        store = dist.TCPStore(host, port + int(ranks), world.size, world.rank == 0)
        before = listening()
        dist.init_process_group("tutti", store=store, rank=world.rank, world_size=world.size)
        found.append(len(listening()) > len(before))
        dist.barrier()
        dist.destroy_process_group()
    return found


@pytest.mark.one_host("ranks of simulated hosts do not listen")
def test_rank_listens_if_the_group_is_larger_than_its_launch(fresh):
    import socket
    host = reachable_address()
    if host is None or host.startswith("127."):
        pytest.skip("this host has no address for others")
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    assert fresh(2, join=False).run(join_several_starts, host, port) == [[True, False]] * 2


class Allocated(ctypes.Structure):
    """The struct that mallinfo2 returns."""
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks "
                "fordblks keepcost".split()]


def split_often(world):
    """Returns the growth of this process's heap, in bytes, while it splits off 100 groups. Their names are long, so
    that the growth shows names that are kept."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Allocated
    dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)

    def split(times):
        for _ in range(times):
            names.append(None)
            dist.group.WORLD.split_group([0], datetime.timedelta(seconds=20), None, f"{len(names)}" + "x" * 50_000, "")
        gc.collect()
        found = libc.mallinfo2()
        return found.uordblks + found.hblkhd

    names = []
    before = split(5)
    return split(100) - before


def test_memory_of_destroyed_split_groups_is_freed(fresh):
    (grown,) = fresh(1, join=False).run(split_often)
    assert grown < 20 * 50_000


def test_ranks_as_threads_of_one_process():
    """A HashStore lives in one process, and so may all ranks of a group."""
    store, size = dist.HashStore(), 3
    sums, failures = {}, []

    def body(rank):
        try:
            group = torch_tutti.ProcessGroupTutti(store, rank, size, datetime.timedelta(seconds=30))
            options = dist.AllreduceOptions()
            for asynchronous in (False, True):
                options.asyncOp = asynchronous
                x = torch.full((10_000,), rank + 1.0)
                group.allreduce([x], options).wait()
                sums[rank, asynchronous] = x[-1].item()
            group.shutdown()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert set(sums.values()) == {6.0} and len(sums) == 2 * size


# ---- options ----
def test_options_can_be_copied():
    options = torch_tutti.Options(algorithm="allreduce=ring", timeout=datetime.timedelta(seconds=7))
    for other in (copy.copy(options), copy.deepcopy(options)):
        assert other is not options and other.algorithm == "allreduce=ring"
        assert other.timeout == datetime.timedelta(seconds=7)
    shown = repr(torch_tutti.Options(enable_reconfigure=True))
    assert shown == 'Options(algorithm="", timeout=None, blocking_futures=False, enable_reconfigure=True)'
    other.algorithm = ""
    assert options.algorithm == "allreduce=ring" and "ring" in repr(options) and torch_tutti.Options().timeout is None


def with_options(world):
    done = []
    for name in torch_tutti.algorithms()["allreduce"]:
        options = torch_tutti.Options(algorithm=f"allreduce={name}", timeout=datetime.timedelta(seconds=30))
        with by_name(world):
            group = dist.new_group(pg_options=options)
            for count in (1, 1000, 100_003):
                x = torch.full((count,), world.rank + 1.0)
                dist.all_reduce(x, group=group)
                assert x[0] == x[-1] == world.size * (world.size + 1) / 2, name
            dist.destroy_process_group(group)
            done.append(name)
    group = dist.new_group(pg_options=torch_tutti.Options(timeout=datetime.timedelta(seconds=30)))
    assert group._get_backend(torch.device("cpu")).options.timeout == datetime.timedelta(seconds=30)
    assert dist.get_backend(group) == "tutti"
    return done


@pytest.mark.parametrize("hosts", ["", "2"])
@pytest.mark.parametrize("size", [2, 3])
def test_every_algorithm_is_chosen_by_name(fresh, size, hosts):
    done = fresh(size, environment={"TUTTI_HOSTS": hosts}).run(with_options)
    assert all("ring" in names and ("one_shot" in names) == (hosts == "") for names in done)


def splitting_again(world):
    parent = dist.group.WORLD
    limit = parent._get_backend(torch.device("cpu")).options.timeout
    # The same ranks and the same name each time.
    for _ in range(3):
        part = parent.split_group([0, 1], datetime.timedelta(seconds=21), None, "pair", "two of three")
        if world.rank < 2:
            x = torch.ones(1)
            part.allreduce([x]).wait()
            assert x == 2
        del part
    assert parent._get_backend(torch.device("cpu")).options.timeout == limit


def test_same_group_is_split_off_again(fresh):
    fresh(3).run(splitting_again)


def splitting_off_others(world):
    """Rank 2 has not been in the first part of that name."""
    for ranks in ([0, 1], [0, 2]):
        # Rank 2 must not begin the second part while the others make the first one.
        dist.barrier()
        part = dist.group.WORLD.split_group(ranks, datetime.timedelta(seconds=15), None, "pair", "two of three")
        if world.rank in ranks:
            x = torch.ones(1)
            part.allreduce([x]).wait()
            assert x == 2
        del part


def test_split_group_may_have_the_name_of_an_earlier_one(fresh):
    fresh(3).run(splitting_off_others)


def splitting_into_halves(world):
    ranks = [0, 1] if world.rank < 2 else [2, 3]
    half = dist.group.WORLD.split_group(ranks, datetime.timedelta(seconds=15), None, "half", "half of four")
    x = torch.tensor([float(world.rank)])
    half.allreduce([x]).wait()
    return x.item()


def test_split_groups_of_one_name_are_made_at_once(fresh):
    assert fresh(4).run(splitting_into_halves) == [1, 1, 5, 5]


def splitting_in_two_threads(world):
    """Each rank begins with another part, so none is made before both ranks have begun with both."""
    parent, made = dist.group.WORLD, {}

    def split(name):
        made[name] = parent.split_group([0, 1], datetime.timedelta(seconds=15), None, name, name)

    threads = [threading.Thread(target=split, args=(name,)) for name in ("one", "two")]
    for thread in threads[::1 if world.rank == 0 else -1]:
        thread.start()
        # By then the thread most likely waits for the other rank.
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    for name in ("one", "two"):
        x = torch.ones(1)
        made[name].allreduce([x]).wait()
        assert x == 2


def test_two_threads_split_in_another_order_on_each_rank(fresh):
    fresh(2).run(splitting_in_two_threads)


def sequence(world):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not hasattr(backend, "_get_sequence_number_for_group"):
        return "not bound"
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    return backend._get_sequence_number_for_group() - before


def test_sequence_number_counts_collectives(fresh):
    values = fresh(2).run(sequence)
    if values[0] == "not bound":
        pytest.skip("this torch does not let Python ask a backend for its sequence number")
    assert values == [2, 2]


def both_devices(world):
    dist.init_process_group("cpu:tutti,cuda:tutti", store=world.store, rank=world.rank, world_size=world.size)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == world.size
    backends = {id(dist.group.WORLD._get_backend(torch.device(d))) for d in ("cpu", "cuda")}
    assert len(backends) == 1


def test_devices_of_a_string_share_one_backend(fresh):
    fresh(2, join=False).run(both_devices)


def in_debug_mode(world):
    x = torch.ones(3)
    dist.all_reduce(x)
    lists = [torch.empty(3) for _ in range(world.size)]
    dist.all_gather(lists, x)
    assert lists[-1][0] == world.size


def test_collectives_with_detail_debug_level(fresh):
    fresh(2, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(in_debug_mode)


def make_with_timeouts(world):
    for wrong in (datetime.timedelta(0), datetime.timedelta(seconds=-1), datetime.timedelta(microseconds=500),
                  datetime.timedelta.max):
        with pytest.raises(ValueError, match="it must be at least a millisecond"):
            dist.new_group(timeout=wrong)
    group = dist.new_group(timeout=datetime.timedelta(days=200_000))
    dist.barrier(group=group)
    limit = group._get_backend(torch.device("cpu")).options.timeout
    dist.destroy_process_group(group)
    return limit > datetime.timedelta(days=36000)


def test_timeouts_below_a_millisecond_and_unlimited_ones_are_refused(shared):
    assert shared(2).run(make_with_timeouts) == [True] * 2


# ---- the timeout of joining ----
def join_alone(world, timeout_s, options_s):
    """Joins a group of two ranks whose other rank never comes. Returns the error."""
    options = torch_tutti.Options(timeout=datetime.timedelta(seconds=options_s)) if options_s else None
    if world.rank == 1:
        return ""
    with pytest.raises(torch_tutti.TimeoutError) as error:
        dist.init_process_group("tutti", store=dist.PrefixStore("alone", world.store), rank=0, world_size=2,
                                timeout=datetime.timedelta(seconds=timeout_s), pg_options=options)
    return str(error.value)


@pytest.mark.parametrize("timeout_s, options_s, counts_ms", [(2, 0, 2000), (40, 3, 3000)])
def test_timeout_of_the_group_limits_joining(fresh, timeout_s, options_s, counts_ms):
    """TUTTI_TIMEOUT_MS does not count, because torch gives a timeout."""
    ranks = fresh(2, join=False, environment={"TUTTI_TIMEOUT_MS": "100"})
    assert f"rank 1 of 2 has not joined group 0 within {counts_ms} ms" in ranks.run(join_alone, timeout_s, options_s)[0]
