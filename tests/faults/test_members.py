"""Tests of processes that were given different members for a group of one name. torch names the groups of `new_group`
by a count, so groups that only some ranks make, or that ranks make in another order, get the same name. A rank that
disagrees gets an error that shows both lists, and no sum is ever taken over ranks of two lists."""
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_tutti")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ranks import Ranks  # noqa: E402


def make_groups(world, groups, after, local):
    """Makes this rank's groups in order. Returns the sum of 10 ** rank over the members of each group that has this
    rank; an error takes the place of a sum and ends the list. after: {rank: the ranks whose end it awaits before its
    first group}."""
    signs = dist.PrefixStore("signs", world.store)
    signs.wait([f"came {rank}" for rank in after.get(world.rank, [])])
    told = []
    for ranks in groups[world.rank]:
        try:
            group = dist.new_group(ranks, use_local_synchronization=local)
            if world.rank in ranks:
                total = torch.tensor([10 ** world.rank])
                dist.all_reduce(total, group=group)
                told.append(total.item())
        except dist.DistBackendError as error:
            told.append(f"{type(error).__name__}: {error}")
            break
    signs.set(f"came {world.rank}", "")
    return told


def told_of(path, groups, after=None, local=False):
    with Ranks(len(groups), path) as ranks:
        return ranks.run(make_groups, groups, after or {}, local)


def shows_both(told, one="2 members, 0, 3, according to its rank", two="2 members, 1, 2, according to its rank"):
    return (isinstance(told, str) and told.startswith("MismatchError: ranks disagree about who is in group 1: ")
            and one in told and two in told and "new_group(ranks, use_local_synchronization=True)" in told)


PAIRS = [[[0, 3]], [[1, 2]], [[1, 2]], [[0, 3]]]
SUMS = [[1001], [110], [110], [1001]]
# 0 and 1 are rank 0 of their lists. Ranks come only when those who are named have been told.
ORDERS = {"both first ranks": {2: [0, 1], 3: [0, 1]}, "a first and a last rank": {1: [2], 3: [0, 2]}}


@pytest.mark.parametrize("order", ORDERS)
def test_all_are_shown_both_lists(tmp_path, order):
    told = told_of(tmp_path, PAIRS, ORDERS[order])
    assert all(len(one) == 1 and shows_both(one[0]) for one in told), told


def test_who_comes_when_the_others_have_formed(tmp_path):
    told = told_of(tmp_path, PAIRS, {1: [0, 3], 2: [0, 3]})
    assert [told[0], told[3]] == [[1001], [1001]]
    assert shows_both(told[1][0]) and shows_both(told[2][0]), told


@pytest.mark.parametrize("turn", range(5))
def test_no_sum_is_over_ranks_of_two_lists(tmp_path, turn):
    told = told_of(tmp_path, PAIRS)
    assert all(told[rank] == SUMS[rank] or shows_both(told[rank][0]) for rank in range(4)), told


def test_groups_in_another_order(tmp_path):
    """Rank 2 makes the second group first."""
    told = told_of(tmp_path, [[[0, 1]], [[0, 1]], [[0, 2], [0, 1]]], {2: [0, 1]})
    assert told[:2] == [[11], [11]]
    assert shows_both(told[2][0], "2 members, 0, 1, according", "2 members, 0, 2, according"), told


def test_a_group_of_another_size(tmp_path):
    told = told_of(tmp_path, [[[0]], [[0, 1, 2]], [[0, 1, 2]]])
    assert told[0] == [1], told
    assert all(shows_both(one[0], "1 members, 0, according", "3 members, 0-2, according") for one in told[1:]), told


def test_a_group_of_which_another_rank_stays_alone(tmp_path):
    """Rank 0 of the longer list waits for it, and so does rank 2 for what rank 0 decides."""
    told = told_of(tmp_path, [[[0, 1, 2]], [[1]], [[0, 1, 2]]])
    assert told[1] == [10], told
    assert all(shows_both(told[rank][0], "1 members, 1, according", "3 members, 0-2, according")
               for rank in (0, 2)), told


def test_groups_of_one_rank_may_have_one_name(tmp_path):
    """torch's new_subgroups(1, group) gives groups of one rank the same name. They work, and so does another group of
    that name with other ranks."""
    assert told_of(tmp_path, [[[0]], [[1]], [[2, 3]], [[2, 3]]]) == [[1], [10], [1100], [1100]]


def test_groups_that_only_their_members_make(tmp_path):
    """With use_local_synchronization, as the error recommends, groups that only their members make get their sums."""
    assert told_of(tmp_path, PAIRS, local=True) == SUMS
