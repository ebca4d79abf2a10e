"""Tests of merged groups, and of the job to which groups belong after a merge or a failed join."""
import datetime
import os

import pytest
import torch
import torch.distributed as dist

import torch_tutti
from torch_tutti._extension import hosts_of


def merging(world, path):
    pair, alone = dist.new_group([0, 1]), dist.new_group([2])
    mine = alone if world.rank == 2 else pair
    merged = mine.merge_remote_group(dist.FileStore(path, world.size), world.size, datetime.timedelta(seconds=30),
                                     "merged", "everybody")
    x = torch.tensor([1.0])
    merged.allreduce([x]).wait()
    assert x == world.size == merged.size()
    everybody = torch.zeros(world.size)
    everybody[merged.rank()] = 1
    merged.allreduce([everybody]).wait()
    # Each rank of the merged group is taken once.
    assert torch.equal(everybody, torch.ones(world.size))


def test_merged_group_has_all_ranks(fresh, tmp_path):
    fresh(3).run(merging, str(tmp_path / "merge"))


def join_on_two_hosts(world):
    """Joins the default group. A job of any size is on two simulated hosts."""
    os.environ["TUTTI_HOSTS"] = "2"
    dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=world.size,
                            timeout=datetime.timedelta(seconds=10))


def merge_half_of_the_job(world, path):
    """Ranks 2 and 3 merge their groups of one rank, make more groups, and return the hosts of each."""
    join_on_two_hosts(world)
    limit = datetime.timedelta(seconds=30)
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    if world.rank > 1:
        merged = alone.merge_remote_group(dist.FileStore(path, 2), 2, limit, "merged", "half")
    pair = dist.new_group([2, 3])
    if world.rank < 2:
        return None
    part = merged.split_group([0, 1], limit, None, "part", "all of the merged group")
    copied = dist.new_group([2, 3], use_local_synchronization=True,
                            pg_options=part._get_backend(torch.device("cpu")).options)
    groups = {"merged": merged, "pair": pair, "part": part, "copied": copied}
    return {name: hosts_of(group._get_backend(torch.device("cpu")), 2) for name, group in groups.items()}


def test_a_merged_group_is_no_new_job(fresh, tmp_path):
    """A merged group and its parts are on the simulated hosts of a job of that size, other groups on those of the
    job."""
    hosts = {"merged": [0, 1], "part": [0, 1], "pair": [0, 0], "copied": [0, 0]}
    assert fresh(4, join=False).run(merge_half_of_the_job, str(tmp_path / "merge")) == [None, None, hosts, hosts]


def mistake_the_members_after_a_merge(world, path):
    """Ranks 0 and 1 form a group. Rank 2, which is in a merged group with rank 3, gives it other members. Returns the
    error of rank 2."""
    join_on_two_hosts(world)
    alone = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    if world.rank > 1:
        merged = alone.merge_remote_group(dist.FileStore(path, 2), 2, datetime.timedelta(seconds=30), "merged", "half")
        assert merged.size() == 2
    options = torch_tutti.Options(timeout=datetime.timedelta(seconds=2))
    options.global_ranks_in_group = [0, 1] if world.rank < 2 else [0, 2]
    made, error = None, ""
    for joins in world.rank < 2, world.rank == 2:
        if joins:
            try:
                made = torch_tutti.ProcessGroupTutti(dist.PrefixStore("mistaken", world.store), min(world.rank, 1), 2,
                                                     group="mistaken", options=options)
            except torch_tutti.Error as caught:
                error = f"{type(caught).__name__}: {caught}"
        dist.barrier()
    return error if made is None else "joined"


def test_ranks_of_a_merged_group_still_notice_other_members(fresh, tmp_path):
    """A name stands for one list of ranks in a job, so a rank with another list gets the error at once."""
    *others, error, last = fresh(4, join=False).run(mistake_the_members_after_a_merge, str(tmp_path / "merge"))
    assert others == ["joined", "joined"] and last == ""
    assert error.startswith("MismatchError: ranks disagree about who is in group mistaken")


def fail_to_join_a_larger_group(world):
    join_on_two_hosts(world)
    if world.rank == 0:
        with pytest.raises(torch_tutti.TimeoutError):
            torch_tutti.ProcessGroupTutti(dist.PrefixStore("larger", world.store), 0, 2 * world.size,
                                          datetime.timedelta(milliseconds=300), "larger")
    return hosts_of(dist.new_group([1, 0])._get_backend(torch.device("cpu")), 2)


def test_a_failed_join_leaves_the_job(fresh):
    """The group that no other rank joined does not become the job of later groups."""
    assert fresh(2, join=False).run(fail_to_join_a_larger_group) == [[0, 1]] * 2
