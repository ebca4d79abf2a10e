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
    """Makes this rank's groups in order. Returns a list: for each group that has this rank, the sum of 10 ** rank over
    its members. The text of an error takes the place of a sum and ends the list. after: {rank: the ranks whose lists
    must be complete before it makes its first group}."""
    signs = dist.PrefixStore("signs", world.store)
    signs.wait([f"done {rank}" for rank in after.get(world.rank, [])])
    results = []
    for ranks in groups[world.rank]:
        try:
            group = dist.new_group(ranks, use_local_synchronization=local)
            if world.rank in ranks:
                total = torch.tensor([10 ** world.rank])
                dist.all_reduce(total, group=group)
                results.append(total.item())
        except dist.DistBackendError as error:
            results.append(f"{type(error).__name__}: {error}")
            break
    signs.set(f"done {world.rank}", "")
    return results


def results_of(path, groups, after=None, local=False):
    with Ranks(len(groups), path) as ranks:
        return ranks.run(make_groups, groups, after or {}, local)


def shows_both(result, one="2 members, 0, 3, according to its rank", two="2 members, 1, 2, according to its rank"):
    """True if the result is an error with both lists of members and with the remedy."""
    return (isinstance(result, str) and result.startswith("MismatchError: ranks disagree about who is in group 1: ")
            and one in result and two in result and "new_group(ranks, use_local_synchronization=True)" in result)


PAIRS = [[[0, 3]], [[1, 2]], [[1, 2]], [[0, 3]]]
SUMS = [[1001], [110], [110], [1001]]
# Ranks 0 and 1 are the first of their lists. A rank makes its group only after the named ranks have had their errors.
ORDERS = {"both first ranks": {2: [0, 1], 3: [0, 1]}, "a first and a last rank": {1: [2], 3: [0, 2]}}


@pytest.mark.parametrize("order", ORDERS)
def test_all_ranks_get_an_error_with_both_lists(tmp_path, order):
    results = results_of(tmp_path, PAIRS, ORDERS[order])
    assert all(len(one) == 1 and shows_both(one[0]) for one in results), results


def test_late_ranks_get_the_error_after_the_others_have_joined(tmp_path):
    results = results_of(tmp_path, PAIRS, {1: [0, 3], 2: [0, 3]})
    assert [results[0], results[3]] == [[1001], [1001]]
    assert shows_both(results[1][0]) and shows_both(results[2][0]), results


@pytest.mark.parametrize("turn", range(5))
def test_no_sum_is_over_ranks_of_two_lists(tmp_path, turn):
    results = results_of(tmp_path, PAIRS)
    assert all(results[rank] == SUMS[rank] or shows_both(results[rank][0]) for rank in range(4)), results


def test_rank_that_makes_groups_in_another_order_gets_the_error(tmp_path):
    """Rank 2 makes the second group first."""
    results = results_of(tmp_path, [[[0, 1]], [[0, 1]], [[0, 2], [0, 1]]], {2: [0, 1]})
    assert results[:2] == [[11], [11]]
    assert shows_both(results[2][0], "2 members, 0, 1, according", "2 members, 0, 2, according"), results


def test_group_of_one_rank_works_beside_an_error_of_larger_ones(tmp_path):
    results = results_of(tmp_path, [[[0]], [[0, 1, 2]], [[0, 1, 2]]])
    assert results[0] == [1], results
    assert all(shows_both(one[0], "1 members, 0, according", "3 members, 0-2, according")
               for one in results[1:]), results


def test_ranks_that_wait_for_a_rank_alone_get_the_error(tmp_path):
    """Rank 1 makes a group of itself. Rank 0 waits for it, and rank 2 waits for the decision of rank 0."""
    results = results_of(tmp_path, [[[0, 1, 2]], [[1]], [[0, 1, 2]]])
    assert results[1] == [10], results
    assert all(shows_both(results[rank][0], "1 members, 1, according", "3 members, 0-2, according")
               for rank in (0, 2)), results


def test_groups_of_one_rank_may_have_one_name(tmp_path):
    """torch's new_subgroups(1, group) gives groups of one rank the same name. They work, and so does another group of
    that name with other ranks."""
    assert results_of(tmp_path, [[[0]], [[1]], [[2, 3]], [[2, 3]]]) == [[1], [10], [1100], [1100]]


def test_groups_that_only_their_members_make(tmp_path):
    """With use_local_synchronization, as the error recommends, groups that only their members make get their sums."""
    assert results_of(tmp_path, PAIRS, local=True) == SUMS
