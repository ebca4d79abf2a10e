"""Tests of operations over several hosts: collectives, messages, groups of some ranks on one host and across hosts, and
training. Their results must be those that one process computes from the same inputs (model.py of tests/python), or
those of gloo. The ranks of a placement start once for all tests."""
import random

import model
import pytest
import torch
import torch.distributed as dist
from across import BACKEND
from model import Step
from operations import verdict
from training import (agree, batch, flat, in_one_process, loss_of, network, same_on_all_ranks, stochastic_descent,
                      train)

PLACEMENTS = {"blocks": (0, 0, 1, 1), "round robin": (0, 1, 0, 1), "three hosts": (0, 1, 2), "uneven": (0, 0, 0, 1)}
KINDS = [kind for kind in [*model.REDUCING, *model.MOVING] if BACKEND == "tutti" or kind in (
    "all_reduce", "broadcast", "all_gather", "gather", "scatter")]
COUNTS = (0, 1, 1000, 65539, 1 << 20)


@pytest.fixture(params=PLACEMENTS)
def placed(request, ranks):
    return ranks(*PLACEMENTS[request.param])


def dtypes(ranks):
    """Returns two types whose sums the model predicts bit by bit: floats if the order of adding is known, otherwise
    integers. The sum of three rounded numbers depends on that order, which the algorithm decides between three
    hosts."""
    known = BACKEND == "tutti" and len(set(ranks.placement)) < 3
    return ["bfloat16", "float32"] if known else ["int32", "int64"]


def check(ranks, program):
    wrong = verdict(ranks, program)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_collective_gives_the_result_of_the_model(placed, kind):
    chance, (first, second) = random.Random(kind), dtypes(placed)
    check(placed, [Step(kind, 0, dtype, (count,), root=chance.randrange(placed.size), how=how, seed=count)
                   for dtype, how in ((first, "sync"), (second, "wait")) for count in COUNTS[:-1]]
          + [Step(kind, 0, first, (1000, 3), how="drop"), Step(kind, 0, second, (COUNTS[-1],))])


def test_barriers_complete(placed):
    check(placed, [Step("barrier", 0, how=how) for how in ("sync", "wait")] * 5)


@pytest.mark.skipif(BACKEND != "tutti", reason="gloo has no messages from anyone")
@pytest.mark.parametrize("how", ["sync", "batch", "wait"])
def test_messages_arrive_as_the_model_says(placed, how):
    """Messages between ranks of one host and of two, several with one tag, of 0, 1, 7 and 3000 elements."""
    every = tuple((source, target, tag) for source in range(4) for target in range(4) for tag in range(4))
    chance = random.Random(how)
    check(placed, [Step("messages", 0, "float32", how=how, seed=seed, messages=tuple(chance.sample(every, 8)))
                   for seed in range(8)])


def large_messages(world, megabytes):
    """Sends large messages to both neighbours of the ring at once, and checks those from them."""
    count, me, size = megabytes << 18, world.rank, world.size
    out = torch.arange(count, dtype=torch.float32) + me
    ins = [torch.empty(count), torch.empty(count)]
    sides = [(me - 1) % size, (me + 1) % size]
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, ins[0], sides[0], tag=1),
                                    dist.P2POp(dist.irecv, ins[1], sides[1], tag=2),
                                    dist.P2POp(dist.isend, out, sides[1], tag=1),
                                    dist.P2POp(dist.isend, out, sides[0], tag=2)])
    [work.wait() for work in works]
    for received, side in zip(ins, sides):
        assert torch.equal(received, torch.arange(count, dtype=torch.float32) + side)


def test_large_messages_in_both_directions_arrive(placed):
    placed.run(large_messages, 8)


@pytest.mark.skipif(BACKEND != "tutti", reason="the model has tutti's groups")
def test_programs_on_overlapping_groups_give_the_results_of_the_model(placed):
    chance, dtype = random.Random(7), dtypes(placed)[-1]
    groups = len(model.groups_of(placed.size))
    for seed in range(6):
        check(placed, [Step(chance.choice(KINDS), chance.randrange(groups), dtype, (chance.choice(COUNTS[:-1]),),
                            root=chance.randrange(4), how=chance.choice(["sync", "wait", "future", "drop"]),
                            seed=chance.randrange(1000)) for _ in range(20)])


def in_groups(world, hosts):
    """Makes a sum in a group of the ranks of each host, and in one of the first rank of each host. Returns the sizes of
    this rank's groups by members."""
    of_host = [[rank for rank, host in enumerate(hosts) if host == one] for one in sorted(set(hosts))]
    first = [members[0] for members in of_host]
    found = {}
    for members in [*of_host, first]:
        group = dist.new_group(members)
        if world.rank in members:
            total = torch.full((1000,), float(world.rank))
            dist.all_reduce(total, group=group)
            assert bool((total == sum(members)).all())
            found[tuple(members)] = dist.get_world_size(group)
            dist.destroy_process_group(group)
    return found


def test_groups_of_one_host_and_across_hosts_sum(placed):
    found = placed.run(in_groups, placed.placement)
    assert all(len(members) == size for of_rank in found for members, size in of_rank.items())


def splits(rank, size):
    return [(rank + 2 * peer) % 5 * 300 for peer in range(size)]


def uneven_all_to_all(world):
    me, size = world.rank, world.size
    give, take = splits(me, size), [splits(peer, size)[me] for peer in range(size)]
    out = torch.empty(sum(take))
    dist.all_to_all_single(out, torch.full((sum(give),), float(me)), take, give)
    expected = torch.cat([torch.full((count,), float(peer)) for peer, count in enumerate(take)])
    assert torch.equal(out, expected)


def test_all_to_all_with_uneven_parts_arrives(placed):
    placed.run(uneven_all_to_all)


# ---- training ----
def train_ddp(world, group=None):
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.01)
    return train(model, stochastic_descent(model.parameters()), 3, world.rank)


def ddp_beside_gloo(world):
    mine = train_ddp(world)
    agree(world, mine, train_ddp(world, world.gloo))
    torch.testing.assert_close(mine, in_one_process(world.size, 3))
    same_on_all_ranks(world, mine)


def test_ddp_gives_what_gloo_gives(placed):
    placed.run(ddp_beside_gloo, limit_s=80)


def fsdp_alone(world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (world.size,))
    model = fully_shard(network(), mesh=mesh)
    optimizer = stochastic_descent(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model(batch(step, world.rank))).backward()
        optimizer.step()
    mine = flat(parameter.full_tensor() for parameter in model.parameters())
    torch.testing.assert_close(mine, in_one_process(world.size, 3))
    same_on_all_ranks(world, mine)


def test_fsdp2_gives_what_one_process_gives(placed):
    placed.run(fsdp_alone, limit_s=80)


# ---- the store after joining ----
def use_after_the_store(world):
    """Makes sums after rank 0, which serves the store, has closed it."""
    dist.barrier()
    if world.rank == 0:
        world.store = None
    total = torch.ones(1000)
    for _ in range(20):
        dist.all_reduce(total)
        total /= world.size
    return total[0].item()


def test_joined_ranks_need_no_store_to_compute(ranks):
    assert ranks(0, 0, 1, 1).run(use_after_the_store) == [1.0] * 4
