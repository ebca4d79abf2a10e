"""Tests of many groups: DeviceMesh of one to four dimensions, slices, flattening, groups that overlap, groups that only
their members make, and hundreds at once. Arithmetic says which ranks must be in a group, in which order."""
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

NAMES = ("replica", "data", "pipe", "model")


def check_group(group, members):
    """Checks that the group uses tutti and has these ranks in this order, by torch's list, a gather and a sum."""
    assert dist.get_process_group_ranks(group) == members and dist.get_backend(group) == "tutti"
    rank = torch.tensor([dist.get_rank()])
    gathered = torch.empty(len(members), dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, rank, group=group)
    assert gathered.tolist() == members
    dist.all_reduce(rank, group=group)
    assert rank.item() == sum(members)


def check_mesh(mesh, ranks):
    """Checks that the mesh has these ranks, a tensor, and that along each dimension the group is the line through this
    rank."""
    assert torch.equal(mesh.mesh, ranks)
    here = (ranks == dist.get_rank()).nonzero()[0].tolist()
    assert list(mesh.get_coordinate()) == here
    for dimension in range(ranks.ndim):
        line = tuple(slice(None) if d == dimension else place for d, place in enumerate(here))
        check_group(mesh.get_group(dimension), ranks[line].tolist())
        assert mesh.get_local_rank(dimension) == here[dimension]


# ---- meshes ----
def mesh_of_shape(world, shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES[:len(shape)])
    check_mesh(mesh, torch.arange(world.size).reshape(shape))


@pytest.mark.parametrize("shape", [(4,), (2, 2), (4, 1), (2, 1, 2), (1, 2, 2), (2, 1, 1, 2), (1, 2, 2, 1)],
                         ids=lambda shape: "x".join(map(str, shape)))
def test_groups_of_a_mesh_are_its_lines(shared, shape):
    shared(4).run(mesh_of_shape, shape)


def test_mesh_of_three_full_dimensions(fresh):
    fresh(8).run(mesh_of_shape, (2, 2, 2))


def slices(world):
    ranks = torch.arange(4).reshape(2, 1, 2)
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("data", "pipe", "model"))
    check_mesh(mesh["data"], ranks[:, 0, world.rank % 2])
    check_mesh(mesh["data", "model"], ranks[:, 0, :])
    check_mesh(mesh["pipe", "model"], ranks[world.rank // 2])
    flat = mesh["data", "model"]._flatten("everything")
    check_mesh(flat, torch.arange(4))
    check_mesh(mesh["pipe", "model"]._flatten(), ranks[world.rank // 2].flatten())
    assert mesh["everything"] == flat
    check_mesh(flat._unflatten(0, (2, 2), ("left", "right")), torch.arange(4).reshape(2, 2))


def test_slices_and_flattened_dimensions(shared):
    shared(4).run(slices)


def any_order(world):
    ranks = torch.tensor([[3, 1], [0, 2]])
    mesh = DeviceMesh("cpu", ranks)
    for dimension, lines in enumerate([ranks.t().tolist(), ranks.tolist()]):
        line = next(line for line in lines if world.rank in line)
        # torch sorts the ranks of a group.
        check_group(mesh.get_group(dimension), sorted(line))
    # All ranks make this mesh of two of them.
    part = DeviceMesh("cpu", [0, 3])
    assert (part.get_coordinate() is None) == (world.rank in (1, 2))
    if world.rank in (0, 3):
        check_group(part.get_group(), [0, 3])


def test_a_mesh_of_any_ranks_in_any_order(shared):
    shared(4).run(any_order)


def wrapped(world):
    """Makes a mesh from existing groups, and a mesh with one dimension on another backend."""
    mine, _ = dist.new_subgroups(group_size=2)
    check_mesh(DeviceMesh.from_group(mine, "cpu"), torch.tensor(dist.get_process_group_ranks(mine)))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"), backend_override={"data": "gloo"})
    assert [dist.get_backend(g) for g in mesh.get_all_groups()] == ["gloo", "tutti"]
    check_group(mesh.get_group("model"), [0, 1] if world.rank < 2 else [2, 3])
    x = torch.ones(3)
    dist.all_reduce(x, group=mesh.get_group("data"))
    assert x.tolist() == [2, 2, 2]


def test_a_mesh_from_groups_and_beside_gloo(shared):
    shared(4).run(wrapped)


def meshes_in_turn(world):
    for turn, shape in enumerate([(4,), (2, 2), (2, 1, 2)]):
        dist.init_process_group("tutti", store=dist.PrefixStore(str(turn), world.store), rank=world.rank,
                                world_size=world.size)
        mesh_of_shape(world, shape)
        dist.destroy_process_group()


def test_a_mesh_after_destroying_another(fresh):
    fresh(4, join=False).run(meshes_in_turn)


# ---- groups ----
def overlapping(world):
    """Work of six pairs and four triples is in flight at once; it is waited for in the opposite order."""
    members = [[a, b] for a in range(4) for b in range(a)] + [[r for r in range(4) if r != out] for out in range(4)]
    groups = [(dist.new_group(ranks), ranks) for ranks in members]
    pending = []
    for turn in range(3):
        for group, ranks in groups:
            if world.rank in ranks:
                x = torch.full((5000,), 10.0 ** world.rank + turn)
                pending.append((dist.all_reduce(x, group=group, async_op=True), x, ranks, turn))
    for work, x, ranks, turn in reversed(pending):
        work.wait()
        assert torch.equal(x, torch.full((5000,), sum(10.0 ** r + turn for r in ranks))), (ranks, turn)


def test_overlapping_groups_with_work_in_flight(shared):
    shared(4).run(overlapping)


def local_groups(world):
    """Only members call. Two rounds, so that neighbours overlap: torch names such a group by its ranks and by how
    many groups the caller is in (distributed_c10d.py:5467), so that number must be the same on its members."""
    for rounds in ([[0, 1], [2, 3]], [[1, 2], [0, 3]], [[1, 2], [0, 3]]):
        for ranks in rounds:
            if world.rank in ranks:
                check_group(dist.new_group(ranks, use_local_synchronization=True), ranks)
    check_group(dist.new_group(use_local_synchronization=True), [0, 1, 2, 3])
    if world.rank == 2:
        check_group(dist.new_group([2], use_local_synchronization=True), [2])
    dist.barrier()


def test_groups_that_only_their_members_make(fresh):
    fresh(4).run(local_groups)


def unsorted(world):
    group = dist.new_group([2, 0, 1], sort_ranks=False)
    check_group(group, [2, 0, 1])
    x = torch.tensor([world.rank])
    dist.broadcast(x, group=group, group_src=0)
    assert x.item() == 2


def test_group_keeps_the_given_order_of_ranks(shared):
    shared(3).run(unsorted)


def resources():
    """Open files and threads of this process, and entries under /dev/shm."""
    return {what: len(os.listdir(where)) for what, where in
            [("files", "/proc/self/fd"), ("threads", "/proc/self/task"), ("shm", "/dev/shm")]}


def hundreds(world, count):
    x = torch.ones(1)
    dist.all_reduce(x)
    before = resources()
    groups = []
    for number in range(count):
        groups.append(dist.new_group([0, 1] if number % 2 else None))
        x = torch.full((7,), float(number))
        dist.all_reduce(x, group=groups[-1])
        assert torch.equal(x, torch.full((7,), 2.0 * number))
    during = resources()
    # Every group still works.
    for number, group in enumerate(groups):
        x = torch.full((3,), float(number + world.rank))
        dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full((3,), 2.0 * number + 1))
    for group in groups:
        dist.destroy_process_group(group)
    return before, during, resources()


def test_hundreds_of_groups_take_files_and_threads_of_one(fresh):
    for before, during, after in fresh(2).run(hundreds, 200):
        assert all(during[what] <= before[what] + 8 for what in ("files", "threads")), (before, during)
        assert after["files"] <= before["files"] and after["threads"] <= before["threads"], (before, after)
        assert during["shm"] == before["shm"]
