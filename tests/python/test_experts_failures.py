"""Tests of an error of one rank between the steps of experts: the other ranks do not wait, and their errors name the
step."""
import os

import pytest
import torch
from test_failures import failures
from torch_tutti import experts

CHOSEN = torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0]])


def give_wrong(rows, counts):
    return rows[:, :1]


def fail(rows, counts):
    raise KeyError("of the user's")


def run_failing(world, dtype, act):
    """Rank 1 fails in its second chunk."""
    calls = []

    def expert(rows, counts):
        calls.append(counts)
        return act(rows, counts) if world.rank == 1 and len(calls) == 2 else rows * 2
    x = torch.ones(4, 8, dtype=dtype, requires_grad=True)
    experts.Dispatcher(4).run(expert, x, torch.ones(4, 2), CHOSEN, chunks=3)


@pytest.mark.parametrize("dtype, act, error", [(torch.float32, fail, "KeyError"), (torch.float64, fail, "KeyError"),
                                               (torch.float64, give_wrong, "ValueError")])
def test_expert_that_raises_ends_the_waits_of_others(fresh, dtype, act, error):
    """Rows of float32 go through shared memory, those of float64 by messages."""
    outcomes = fresh(2).outcomes(run_failing, dtype, act)
    failures(outcomes[1:], error, "of the user's" if act is fail else "combine: the experts' outputs are [")
    failures(outcomes[:1], "AbortedError", "experts: rank 0 of the group waits in ", "which another rank has not "
             "reached; an error there before this step may be the cause: ", "rank 1")


def end(_):
    os._exit(3)


def end_in_backward(world):
    x = torch.ones(4, 8, requires_grad=True)
    batch = experts.Dispatcher(4).dispatch(x, CHOSEN)
    outputs = batch.tokens * 2
    if world.rank == 1:
        outputs.register_hook(end)
    experts.Dispatcher(4).combine(outputs, torch.ones(4, 2), batch).sum().backward()


def test_death_in_the_backward_pass_is_an_error(fresh):
    outcome = fresh(2).outcomes(end_in_backward)[0]
    failures([outcome], "PeerError", "experts: rank 0 of the group waits in the backward pass of dispatch(), ")
