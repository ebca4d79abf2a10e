"""Tests of lists of tensors, which go to the core by address: results are right wherever the tensors lie, nothing
beside them is written, only tensors that cannot be addressed are packed, and lists of outputs that overlap are
refused."""
import random

import pytest
import torch
import torch.distributed as dist
import torch_tutti as tutti
from torch.profiler import ProfilerActivity, profile

from memory import is_shared

KINDS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
FILL, GAP = -1.0, 3


def value(rank, part, count):
    return (torch.arange(count) % 97 + 1000 * rank + 100 * part).float()


# ---- where the tensors of a list lie; each function returns the allocations, and the tensors in them ----
def in_gaps(counts, draw):
    """All tensors are in one allocation, in any order, with gaps between them."""
    room, parts, at = torch.full((sum(counts) + GAP * len(counts) + GAP,), FILL), [None] * len(counts), GAP
    for q in draw.sample(range(len(counts)), len(counts)):
        parts[q] = room[at:at + counts[q]]
        at += counts[q] + GAP
    return [room], parts


def in_allocations(counts, draw):
    """Each tensor is in its own allocation. The allocations are made in any order."""
    rooms = {q: torch.full((counts[q] + 2 * GAP,), FILL) for q in draw.sample(range(len(counts)), len(counts))}
    return list(rooms.values()), [rooms[q][GAP:GAP + count] for q, count in enumerate(counts)]


def in_shared_and_private(counts, draw):
    """Some tensors are in shared memory, far from the private ones."""
    rooms = [tutti.empty(count + 2 * GAP) if draw.random() < 0.5 else torch.empty(count + 2 * GAP) for count in counts]
    return [room.fill_(FILL) for room in rooms], [room[GAP:GAP + count] for room, count in zip(rooms, counts)]


def in_blocks(counts, draw):
    """All tensors are in shared memory. Large ones have blocks of their own."""
    rooms = [tutti.empty(count + 2 * GAP).fill_(FILL) for count in counts]
    return rooms, [room[GAP:GAP + count] for room, count in zip(rooms, counts)]


def in_one_block(counts, draw):
    room, parts, at = tutti.empty(sum(counts) + GAP * len(counts) + GAP).fill_(FILL), [], GAP
    for count in counts:
        parts.append(room[at:at + count])
        at += count + GAP
    return [room], parts


def in_bytes(counts, draw):
    """The addresses of tensors differ by fractions of an element."""
    rooms, parts = [], []
    for q, count in enumerate(counts):
        rooms.append(torch.full((count + 2 * GAP,), FILL))
        content = rooms[-1].view(torch.uint8).numpy()[q % 4:]
        parts.append(torch.frombuffer(content.data, dtype=torch.float32, count=count, offset=4 * GAP)
                     if count else torch.empty(0))
    return rooms, parts


PLACES = [in_gaps, in_allocations, in_shared_and_private, in_blocks, in_one_block, in_bytes]


# ---- every collective, wherever its tensors lie ----
def beside_is_untouched(rooms, parts):
    for room in rooms:
        now, before = room.view(torch.uint8).numpy().copy(), torch.full_like(room, FILL).view(torch.uint8).numpy()
        for part in parts:
            begin = part.data_ptr() - room.data_ptr()
            if 0 <= begin < len(now):
                now[begin:begin + part.nbytes] = before[begin:begin + part.nbytes]
        if (now != before).any():
            return False
    return True


def has_list(kind, rank):
    return rank == 0 or kind not in ("gather", "scatter")


def call_with(kind, world, counts, make):
    """Calls a collective with lists that `make` makes. Returns the tensors of the lists, and what they must contain
    afterwards."""
    me, p = world.rank, world.size
    mine = counts[me]
    if kind == "all_to_all":
        ins, outs = make([(value(me, q, n)) for q, n in enumerate(counts)]), make([torch.zeros(mine)] * p)
        dist.all_to_all(outs, ins)
        return ins + outs, [value(me, q, n) for q, n in enumerate(counts)] + [value(q, me, mine) for q in range(p)]
    if kind in ("all_gather", "gather"):
        results = [value(q, 0, n) for q, n in enumerate(counts)]
        outs = make([torch.zeros(n) for n in counts]) if has_list(kind, me) else None
        getattr(dist, kind)(*[outs, value(me, 0, mine)][::1 if kind == "all_gather" else -1])
        return outs or [], results
    one, contents = torch.empty(mine), [value(me, q, n) for q, n in enumerate(counts)]
    ins = make(contents) if has_list(kind, me) else None
    getattr(dist, kind)(one, ins)
    expected = sum(value(q, me, mine) for q in range(p)) if kind == "reduce_scatter" else value(0, me, mine)
    assert torch.equal(one, expected), f"{kind}: {one[:8]} is not {expected[:8]}"
    return ins or [], contents


def in_every_place(world, kind):
    for seed, place in enumerate(PLACES * 2):
        counts = ([0, 1, 5, 3], [7, 7, 7, 7], [70_001, 300_000, 0, 9], [200_000] * 4)[seed % 4][:world.size]
        if kind in ("gather", "scatter"):
            counts = [max(counts)] * world.size
        # Each rank draws its own places.
        draw, rooms = random.Random(seed + 100 * world.rank), []

        def make(contents):
            made, parts = place([len(content) for content in contents], draw)
            rooms.extend(made)
            for part, content in zip(parts, contents):
                part.copy_(content)
            return parts

        parts, wanted = call_with(kind, world, counts, make)
        for part, want in zip(parts, wanted):
            assert torch.equal(part, want), f"{kind} in {place.__name__}: {part[:8]} is not {want[:8]}"
        assert beside_is_untouched(rooms, parts), f"{kind} in {place.__name__}: bytes beside a tensor were written"


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_right_wherever_tensors_lie(shared, kind, size):
    shared(size).run(in_every_place, kind)


# ---- packed lists ----
def packs(call):
    """Returns whether the shim has allocated memory for the call."""
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        call()
    names = [event.name for event in profiled.events()]
    assert any(name.startswith("tutti:") for name in names)
    return "aten::empty" in names


def check_packing(world):
    p, draw, one = world.size, random.Random(world.rank), torch.ones(5000)
    counts = [5000] * p
    for place in PLACES:
        for kind, call in {
            "all_gather": lambda parts: dist.all_gather(parts, one),
            "reduce_scatter": lambda parts: dist.reduce_scatter(one, parts),
            "all_to_all": lambda parts: dist.all_to_all(parts, [one] * p),
        }.items():
            _, parts = place(counts, draw)
            assert packs(lambda: call(parts)) == (place is in_bytes), f"{kind} in {place.__name__}"
    adjacent = list(torch.zeros(p * 5000).split(5000)) if world.rank == 0 else None
    assert not packs(lambda: dist.gather(one, adjacent)) and not packs(lambda: dist.scatter(one, adjacent))


def test_only_tensors_that_cannot_be_addressed_are_packed(shared):
    shared(2).run(check_packing)


def sent_more_than_once(world):
    """A tensor that is only read may be in a list several times, and a result may lie in one of the inputs."""
    p, me = world.size, world.rank
    x, total = value(me, 0, 5000), sum(value(q, 0, 5000) for q in range(p))
    out, outs = torch.empty(5000), [torch.empty(5000) for _ in range(p)]
    dist.reduce_scatter(out, [x] * p)
    assert torch.equal(out, total)
    dist.all_to_all(outs, [x] * p)
    assert all(torch.equal(got, value(q, 0, 5000)) for q, got in enumerate(outs))
    dist.scatter(out, [x] * p if me == 0 else None)
    assert torch.equal(out, value(0, 0, 5000))
    dist.reduce_scatter(x, [x] * p)
    assert torch.equal(x, total)


@pytest.mark.parametrize("size", [2, 3])
def test_inputs_may_overlap(shared, size):
    shared(size).run(sent_more_than_once)


# ---- refused calls ----
def refused(pieces, call):
    with pytest.raises(ValueError) as error:
        call()
    for piece in pieces:
        assert piece in str(error.value)


def overlapping_results(world):
    p, b = world.size, torch.arange(8.0)
    text = ["output 0 and output 1 overlap in memory", "give each rank a tensor of its own"]
    ones = [torch.ones(8) for _ in range(p)]
    across = [b[:5], b[4:], *ones][:p]
    refused(["all_gather", *text], lambda: dist.all_gather([b] * p, ones[0]))
    refused(["all_to_all", *text], lambda: dist.all_to_all([b] * p, ones))
    refused(["all_to_all", *text], lambda: dist.all_to_all(across, ones))
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    refused(["all_gather", *text], lambda: group.allgather_coalesced([[ones[0], b]] * p, [torch.ones(8)] * 2))
    if world.rank == 0:
        refused(["gather", *text], lambda: dist.gather(ones[0], [b] * p))
    unaligned = torch.frombuffer(b.view(torch.uint8).numpy().data, dtype=torch.float32, count=4, offset=2)
    refused(["all_gather", "output 0 and output 1 overlap"],
            lambda: dist.all_gather([b[:4], unaligned, *[torch.empty(4) for _ in range(p)]][:p], b[4:]))
    assert torch.equal(b, torch.arange(8.0))
    dist.all_gather([b[:4], b[4:], *[torch.empty(4) for _ in range(p)]][:p], torch.full((4,), world.rank + 1.0))
    # Neighbours do not overlap, and the group still works.
    assert b.tolist() == [1.0] * 4 + [2.0] * 4


@pytest.mark.parametrize("size", [2, 3])
def test_overlapping_outputs_are_refused(shared, size):
    shared(size).run(overlapping_results)


def splits_beyond(world):
    """The sum of the splits wraps to 4 in 64 bits, and so does their number of elements."""
    x, huge = torch.zeros(4, 4), [2 ** 62 + 1] * 4
    refused(["input split sizes", "add up to more than the 4 rows"],
            lambda: dist.all_to_all_single(x.clone(), x, [1] * 4, huge))
    refused(["output split sizes", "add up to more than the 4 rows"],
            lambda: dist.all_to_all_single(x.clone(), x, huge, [1] * 4))
    refused(["split size -1", "for rank 1", "negative"],
            lambda: dist.all_to_all_single(x.clone(), x, [1] * 4, [5, -1, 0, 0]))
    dist.barrier()


def test_splits_that_wrap_are_refused(shared):
    shared(4).run(splits_beyond)


def shared_lists(world):
    """Gathers into tensors that lie in one block of shared memory."""
    _, parts = in_one_block([300_000] * world.size, random.Random(0))
    assert all(is_shared(part) for part in parts)
    before = tutti.empty(300_000).fill_(world.rank)
    dist.all_gather(parts, before)
    assert [part[0].item() for part in parts] == list(range(world.size))


def test_list_in_one_shared_block(shared):
    shared(2).run(shared_lists)
