"""The parts of torch 2.14 that torch 2.13 does not ask of a backend. With an older torch these tests are skipped."""
import subprocess
import sys
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torch_tutti

newer = pytest.mark.skipif(not hasattr(dist, "gather_single"), reason="torch before 2.14")


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


SUPPORTED = ["supports_splitting", "supports_coalescing", "supports_abort_hooks", "supports_completion_hooks",
             "supports_time_estimate", "_supports_time_estimate"]


def capabilities(world):
    """Returns the backend's answers for the capabilities that this torch asks for, by name."""
    backend = backend_of()
    return {name: getattr(backend, name) for name in SUPPORTED if hasattr(backend, name)}


def test_torch_sees_what_the_backend_supports(shared):
    """A later torch may ask in another way. It would then not see the functions that answer."""
    for answers in shared(2).run(capabilities):
        assert {"supports_splitting", "supports_coalescing"} < set(answers) and all(answers.values()), answers


# ---- gather_single ----
def gather(world, options):
    shape = options.get("shape", (3, 2))
    mine = torch.arange(6.).view(3, 2) + 10 * world.rank
    out = torch.full((world.size, *shape), -1.) if world.rank == 1 else None
    work = dist.gather_single(mine, out, dst=1, async_op=options.get("async_op", False))
    if work:
        work.wait()
    return None if out is None else out.flatten().tolist()


@newer
@pytest.mark.parametrize("async_op", [False, True])
def test_gather_single_gathers_on_its_root(shared, async_op):
    for size in 2, 3:
        found = shared(size).run(gather, {"async_op": async_op})
        assert found.pop(1) == [10. * rank + i for rank in range(size) for i in range(6)]
        assert found == [None] * (size - 1)


@newer
def test_gather_single_of_another_size_is_refused(fresh):
    outcomes = fresh(2, timeout_s=2).outcomes(gather, {"shape": (2, 2)})
    assert outcomes[1].error == "ValueError"
    assert "gather_single: the output has 8 elements; it must have 12" in outcomes[1].text


def gather_over_the_input(world):
    whole = torch.zeros(4)
    mine = torch.tensor([1., 2.])
    if world.rank == 0:
        mine = whole[:2].copy_(mine)
    dist.gather_single(mine + 0 if world.rank else mine, whole if world.rank == 0 else None)
    return whole.tolist()


@newer
def test_gather_single_from_a_part_of_its_output(shared):
    assert shared(2).run(gather_over_the_input)[0] == [1., 2., 1., 2.]


# ---- the new names of the old collectives ----
def call_new_names(world):
    backend, n, me = backend_of(), world.size, world.rank
    whole, part = torch.empty(2 * n), torch.full((2,), float(me))
    backend.all_gather_single(whole, part).wait()
    sums = torch.empty(2)
    backend.reduce_scatter_single(sums, whole).wait()
    mixed = torch.empty(2 * n)
    backend.all_to_all_single(mixed, whole + me, [], []).wait()
    wholes, parts = [torch.empty(2 * n)], [torch.empty(2)]
    backend.all_gather_single_coalesced(wholes, [part]).wait()
    backend.reduce_scatter_single_coalesced(parts, [whole]).wait()
    assert wholes[0].tolist() == whole.tolist() and parts[0].tolist() == sums.tolist()
    return whole.tolist(), sums.tolist(), mixed.tolist()


@newer
def test_collectives_by_their_new_names(shared):
    for me, (whole, sums, mixed) in enumerate(shared(3).run(call_new_names)):
        assert whole == [0, 0, 1, 1, 2, 2]
        assert sums == [3 * me] * 2
        assert mixed == [me + rank for rank in range(3) for _ in range(2)]


def call_within_a_call(world):
    """A hook that torch runs before a collective makes the same collective itself."""
    whole, inner, part = torch.empty(world.size), torch.empty(world.size), torch.full((1,), float(world.rank))
    inside = []

    def hook(arguments):
        if not inside:
            inside.append(True)
            dist.all_gather_single(inner, part + 1)
    group = dist.group.WORLD
    group.register_pre_hook(7, hook)
    try:
        dist.all_gather_single(whole, part)
    finally:
        group.unregister_pre_hook(7)
    return whole.tolist(), inner.tolist()


@newer
def test_hook_of_a_collective_may_make_the_same_collective(shared):
    assert shared(2).run(call_within_a_call) == [([0, 1], [1, 2])] * 2


# ---- timeouts ----
def timeouts_of_works(world):
    group = dist.new_group(timeout=timedelta(seconds=11))
    backend = backend_of(group)
    x = torch.ones(3)
    found = [dist.all_reduce(x, group=group, async_op=True)]
    with torch_tutti.options(timeout=timedelta(seconds=5)):
        found.append(dist.all_reduce(x, group=group, async_op=True))
    backend.set_timeout(timedelta(seconds=12))
    found.append(dist.all_reduce(x, group=group, async_op=True))
    for work in found:
        work.wait()
    return [work.timeout.total_seconds() for work in found]


@newer
def test_a_work_knows_its_timeout(shared):
    assert shared(2).run(timeouts_of_works) == [[11, 5, 12]] * 2


def extend_timeouts(world):
    """Rank 1 makes the first call when rank 0 has made three, and the others when rank 0 has started them."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    x, works = torch.ones(3), []

    def start(count=1, more_s=0):
        if more_s:
            backend_of(group)._add_ephemeral_timeout(timedelta(seconds=more_s))
        works.extend(dist.all_reduce(x, group=group, async_op=True) for _ in range(count))
    if world.rank == 1:
        world.store.wait(["extended"])
        start()
        world.store.wait(["started"])
        start(count=4)
    else:
        start(more_s=1)
        start(count=2, more_s=2)
        world.store.set("extended", "")
        works[0].wait()
        start()
        world.store.set("started", "")
        for work in works:
            work.wait()
        start()
    for work in works:
        work.wait()
    return [work.timeout.total_seconds() for work in works]


@newer
def test_a_timeout_is_longer_until_the_first_work_is_over(shared):
    assert shared(2).run(extend_timeouts) == [[21, 23, 23, 22, 20], [20] * 5]


def extend_once(world):
    """Rank 1 makes the first call a second late, within the extension, and does not make the second call."""
    import time
    group = dist.new_group(timeout=timedelta(seconds=0.4))
    backend_of(group)._add_ephemeral_timeout(timedelta(seconds=30))
    x = torch.ones(3)
    if world.rank == 1:
        time.sleep(1)
    dist.all_reduce(x, group=group)
    if world.rank == 0:
        dist.all_reduce(x, group=group)
    return "passed"


@newer
def test_an_extension_is_used_once(fresh):
    outcomes = fresh(2).outcomes(extend_once)
    assert outcomes[0].error == "TimeoutError" and "400 ms" in outcomes[0].text
    assert outcomes[1].value == "passed"


@newer
def test_a_negative_extension_is_refused(shared):
    assert shared(2).run(extend_by_less_than_nothing) == [True, True]


def extend_by_less_than_nothing(world):
    with pytest.raises(ValueError, match="the timeout is negative"):
        backend_of()._add_ephemeral_timeout(timedelta(seconds=-1))
    return True


def set_timeout_publicly(world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = dist.new_group()
        dist.set_timeout(timedelta.max, group)
        dist.all_reduce(torch.ones(1), group=group)
        dist.set_timeout(timedelta(seconds=7), group)
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        work.wait()
        with pytest.raises(ValueError, match="set_timeout: a timeout of 0 s"):
            dist.set_timeout(timedelta(0), group)
    return work.timeout.total_seconds()


@newer
def test_set_timeout_applies_to_later_works(shared):
    assert shared(2).run(set_timeout_publicly) == [7, 7]


# ---- options and names ----
def split(world):
    options = torch_tutti.Options(algorithm="allreduce=ring")
    part = dist.group.WORLD.split_group([0, 1], opts=options, group_name="ringed")
    dist.all_reduce(torch.ones(1), group=part)
    return backend_of(part).options.algorithm, backend_of(part).options.group_name, options.group_name


@newer
def test_torch_clones_the_options_of_a_split_group(shared):
    """The clone has the class and the fields of the caller's options, which stay as they are."""
    assert shared(2).run(split) == [("allreduce=ring", "ringed", "")] * 2


@newer
def test_take_over_loads_backends_that_torch_loads_by_name():
    program = ("import torch_tutti, torch.distributed as dist\n"
               "assert 'nccl2' not in dist.Backend.backend_list\n"
               "print(torch_tutti.take_over('nccl2').names)\n"
               "try: torch_tutti.take_over('nccl3')\n"
               "except ValueError as error: print(error)\n")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("('nccl2',)\n") and "knows no backend of this name" in run.stdout
