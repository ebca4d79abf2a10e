"""Tests of tensors in shared memory: they behave as any tensor does, and collectives give the same results with them,
whichever ranks have them."""
import copy
import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch_tutti as tutti
from memory import is_shared
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import batch, flat, loss_of, network, stochastic_descent

# Elements: several tiles, of which the last one is short.
COUNT = 300_007


# ---- tensors ----
def test_empty_is_like_torch_s():
    for size in ((), (0,), (3, 4)):
        assert tutti.empty(size).shape == size
    for size in ((0,), (3, 4), ([2, 3],), (torch.Size([5]),)):
        ours, theirs = tutti.empty(*size), torch.empty(*size)
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
    x = tutti.empty(1000, dtype=torch.int16, requires_grad=False).fill_(7)
    assert is_shared(x) and not is_shared(torch.empty(1000)) and x.sum() == 7000
    x.resize_(200_000)
    assert is_shared(x) and x[:1000].eq(7).all()
    assert tutti.empty(3, requires_grad=True).requires_grad
    # A size may be whatever can be an index, as in torch.empty.
    assert tutti.empty(torch.tensor(3)).shape == (3,)


def test_block_makes_shared_tensors_on_its_thread():
    before = torch.ones(5000)
    with tutti.shared_tensors():
        with tutti.shared_tensors():
            inner = torch.zeros(5000)
        made = [torch.randn(5000), before.clone(), before + 1, torch.nn.Linear(64, 64).weight, inner]
        other = []
        thread = threading.Thread(target=lambda: other.append(torch.zeros(5000)))
        thread.start()
        thread.join(30)
    assert all(is_shared(tensor) for tensor in made) and not is_shared(other[0])
    assert not is_shared(torch.zeros(5000)) and made[1].eq(1).all() and made[2].eq(2).all()
    with pytest.raises(KeyError), tutti.shared_tensors():
        raise KeyError
    assert not is_shared(torch.zeros(5000))


def test_a_block_that_is_left_on_another_thread_is_over():
    def other():
        with tutti.shared_tensors():
            first.__exit__(None, None, None)
            # The block of this thread goes on.
            found.append(torch.zeros(5000))
        second.__exit__(None, None, None)

    found, first, second = [], tutti.shared_tensors(), tutti.shared_tensors()
    first.__enter__(), second.__enter__()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    assert is_shared(found[0]) and not is_shared(torch.zeros(5000))


def test_threads_may_share_a_block_of_shared_tensors():
    def other():
        with block:
            found.append(torch.zeros(5000))
            inside.set()
            left.wait(30)
            found.append(torch.zeros(5000))

    found, block, inside, left = [], tutti.shared_tensors(), threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with block:
        thread.start()
        inside.wait(30)
    found.append(torch.zeros(5000))
    left.set()
    thread.join(30)
    assert [is_shared(one) for one in found] == [True, False, True]


def test_libraries_may_allocate_in_a_block():
    """oneDNN takes temporary memory from torch's allocator, inside a block and later, and frees it by itself."""
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    expected = a @ b
    for _ in range(3):
        with tutti.shared_tensors():
            assert torch.equal(a @ b, expected)
        assert torch.equal(a @ b, expected)


def test_too_much_is_an_error_that_names_the_bytes():
    with pytest.raises(MemoryError, match=r"\d{16} bytes are asked for"):
        tutti.empty(2 ** 50, dtype=torch.int8)
    with pytest.raises(MemoryError, match=r"\d{16} bytes are asked for, \d+ are left"), tutti.shared_tensors():
        torch.empty(2 ** 50, dtype=torch.int8)
    assert not is_shared(torch.zeros(5000)) and is_shared(tutti.empty(5000))


class Overwriting(torch.utils.data.TensorDataset):
    def __getitem__(self, index):
        item = super().__getitem__(index)[0].clone()
        self.tensors[0][index] = -1
        return item


def test_forked_workers_have_their_own_copy():
    """A DataLoader forks workers. They see the tensors, and the parent does not see what they write."""
    with tutti.shared_tensors():
        dataset = Overwriting(torch.arange(1000.0))
    for _ in range(2):
        loader = torch.utils.data.DataLoader(dataset, batch_size=100, num_workers=2)
        assert torch.cat(list(loader)).equal(torch.arange(1000.0))
    assert dataset.tensors[0].equal(torch.arange(1000.0)) and is_shared(dataset.tensors[0])


def test_share_buckets_refuses_other_modules():
    with pytest.raises(TypeError, match="takes a DistributedDataParallel, not Linear"):
        tutti.share_buckets(torch.nn.Linear(1, 1))


# ---- freed memory ----
def held():
    """Returns the number of open files, and of bytes mapped from memfds: the arena, blocks of peers, segments."""
    mapped = 0
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            begin, _, end = line.split()[0].partition("-")
            mapped += int(end, 16) - int(begin, 16) if "memfd:" in line else 0
    return len(os.listdir("/proc/self/fd")), mapped


def allocate_and_free(world):
    """Allocates tensors of all sizes. Some are reduced at once, some in the background after the program has dropped
    them."""
    generator = torch.Generator().manual_seed(3)
    middle = None
    for cycle in range(2000):
        count = int(torch.randint(1, 2 ** int(torch.randint(1, 20, (), generator=generator)), (), generator=generator))
        x = tutti.empty(count).fill_(world.rank)
        work = dist.all_reduce(x, async_op=cycle % 3 == 0)
        if work and cycle % 2:
            work.wait()
        elif not work:
            assert x[-1] == sum(range(world.size))
        if cycle == 1000:
            dist.barrier()
            middle = held()
    dist.barrier()
    return middle, held()


def resident():
    """Returns how many of the bytes that held() counts as mapped are in memory."""
    total, counts = 0, False
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if "-" in line.split()[0]:
                counts = "memfd:" in line
            elif counts and line.startswith("Rss:"):
                total += 1024 * int(line.split()[1])
    return total


def free_a_large_tensor(world):
    x = tutti.empty(1 << 25).fill_(1.0)
    dist.all_reduce(x)
    before = resident()
    del x
    dist.barrier()
    return before - resident()


@pytest.mark.one_host("tensors of other hosts are not mapped")
def test_large_tensor_is_freed_by_its_owner_and_by_its_peers(shared):
    for given_back in shared(2).run(free_a_large_tensor):
        # The tensor of this rank, and what it has read of the other's.
        assert given_back > 1 << 27


def test_thousands_of_tensors_leave_nothing(shared):
    for (files, mapped), (files_at_end, mapped_at_end) in shared(2).run(allocate_and_free):
        assert files_at_end <= files and mapped_at_end <= mapped + (32 << 20)


# ---- collectives ----
def tensor(shared, values):
    return tutti.empty(values.numel(), dtype=values.dtype).copy_(values) if shared else values.clone()


def results(world, sharers, x, kinds):
    """Runs each collective with the tensors of the ranks `sharers` in shared memory, and returns the results. kinds:
    which tensors are shared, "input" or "output" or both."""
    p, me = world.size, world.rank
    mine = me in sharers
    source, target = (mine and kind in kinds for kind in ("input", "output"))
    reduced = tensor(source, x)
    dist.all_reduce(reduced)
    gathered = tensor(target, torch.zeros(COUNT * p))
    dist.all_gather_into_tensor(gathered, tensor(source, x))
    scattered = tensor(target, torch.zeros(COUNT))
    dist.reduce_scatter_tensor(scattered, tensor(source, x.repeat(p)))
    sent = tensor(source, x)
    dist.broadcast(sent, p - 1)
    exchanged = tensor(target, torch.zeros(COUNT * p))
    dist.all_to_all_single(exchanged, tensor(source, x.repeat(p)))
    later = [tensor(source, x) for _ in range(3)]
    for work in [dist.all_reduce(one, async_op=True) for one in later]:
        work.wait()
    return [reduced, gathered, scattered, sent, exchanged, *later]


def check_results(world):
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(world.rank))
    expected = results(world, (), x, ())
    for sharers in ((0,), (world.size - 1,), range(world.size)):
        for kinds in (("input",), ("output",), ("input", "output")):
            for got, want in zip(results(world, sharers, x, kinds), expected):
                assert torch.equal(got, want)


@pytest.mark.parametrize("size", [2, 3])
def test_results_do_not_depend_on_where_tensors_live(shared, size):
    shared(size).run(check_results)


# ---- DistributedDataParallel ----
def bucket_of(model):
    # The gradient is a view of its bucket.
    return next(model.parameters()).grad


def train_shared(world):
    parameters = []
    for share in (False, True):
        options = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.005}
        if share:
            with tutti.shared_tensors():
                model = tutti.share_buckets(DistributedDataParallel(network(), **options))
        else:
            model = DistributedDataParallel(network(), **options)
        optimizer = stochastic_descent(model.parameters())
        for step in range(4):
            loss_of(model(batch(step, world.rank))).backward()
            assert is_shared(bucket_of(model)) == share, step
            optimizer.step()
            optimizer.zero_grad()
        assert "_pre_forward" not in vars(model)
        parameters.append(flat(model.parameters()))
    assert torch.equal(*parameters)


def test_buckets_stay_shared_when_they_are_rebuilt(shared):
    shared(2).run(train_shared)


def share_a_copy(world):
    original = tutti.share_buckets(DistributedDataParallel(network(), gradient_as_bucket_view=True))
    model = copy.deepcopy(original)
    for step in range(3):
        loss_of(model(batch(step, world.rank))).backward()
    assert is_shared(bucket_of(model))
    assert bucket_of(original) is None
    with pytest.raises(ValueError, match="torch has already rebuilt the buckets of this model"):
        tutti.share_buckets(model)


def test_a_copy_of_a_model_shares_its_own_buckets(shared):
    shared(2).run(share_a_copy)


# ---- FSDP2 ----
def shard_in_memory_of_the_group(world):
    """Gradients of a sharded model lie where the group has reduced them; parameters where they were made."""
    with tutti.shared_tensors():
        model = fully_shard(network())
    loss_of(model(batch(0, world.rank))).backward()
    weight = next(model.parameters())
    assert is_shared(weight.to_local()) and not is_shared(weight.grad.to_local())
    model.zero_grad()
    model.set_allocate_memory_from_process_group_for_comm(True)
    loss_of(model(batch(0, world.rank))).backward()
    assert is_shared(weight.grad.to_local())


def test_fully_shard_reduces_in_shared_memory_on_request(shared):
    shared(2).run(shard_in_memory_of_the_group)
