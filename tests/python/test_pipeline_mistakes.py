"""Tests of mistakes with Pipeline.runner, and of failures in the middle of a step: every error reaches all ranks, with
the stage and the microbatch."""
import os
import signal

import pytest
import torch
import torch.distributed as dist
from test_failures import failures
from test_pipeline_runner import runner_of
from test_pipelining import Block, data, loss_of
from torch import nn
from zero_training import refused

import torch_tutti
from torch_tutti import Pipeline
from torch_tutti import _pipeline_messages as messages


# ---- mistakes: all ranks get the same error, and the group still works ----
def wrong_stages(world):
    def refuse(text, stages, name="zb-v", microbatches=4, group=None):
        refused(ValueError, text, lambda: Pipeline(name, 2, microbatches).runner(stages, loss_of, group))
    two, me, wrapped = [Block(0), Block(1)], world.rank, nn.parallel.DistributedDataParallel(Block(0))
    refuse("rank 1 of zb-v .*: 1 modules for the stages 1, 2; each needs one", two[me:])
    refuse("rank 0 of zb-v .*: stage 3 is a dict, not a module", two if me else [Block(0), {}])
    refuse("rank 0 of 1f1b .*: stage 0 is a NoneType, not a module", Block(0) if me else None, "1f1b")
    refuse("rank 0 has zb-v of 2 ranks, stages on each: 2, microbatches: 4; rank 1 has .* microbatches: 5", two,
           microbatches=4 + me)
    refuse("rank 0 has gpipe .*; rank 1 has 1f1b", Block(0), "1f1b" if me else "gpipe")
    refuse("stage 1 is a DistributedDataParallel, .*; pass its module, and average gradients after the step",
           wrapped if me else wrapped.module, "1f1b")
    refuse("rank 0 of 1f1b .*: stage 0 is on meta, but the group uses another backend than tutti for it",
           Block(0).to("meta"), "1f1b")
    refuse("no tutti backend for CPU tensors .its backend is gloo", two, group=world.gloo)
    refused(ValueError, "it has 3 ranks, but the group has 2", lambda: Pipeline("1f1b", 3, 4).runner(two))
    others = [dist.new_group([rank]) for rank in range(2)][1 - me]
    refuse("this rank is in no such group", two, group=others)


def test_wrong_stages_are_refused_on_all_ranks(shared):
    shared(2).run(wrong_stages)


def wrong_calls(world):
    me, pipeline = world.rank, Pipeline("1f1b", 2, 4)
    runner = runner_of(pipeline, [Block(0), Block(1)])
    without = runner_of(pipeline, [Block(0), Block(1)], None)
    x, y = data(2, 1)

    def refuse(text, call):
        refused(ValueError, text, call)
    refuse("pipeline: rank 0: step\\(\\) without arguments", lambda: runner.step(target=y))
    refuse("pipeline: rank 1: step\\(\\) without a target", lambda: runner.step(x))
    refuse("rank 0: eval\\(\\) without arg.*; rank 1: eval\\(\\) with a list", lambda: runner.eval(target=([],)))
    refuse("rank 1: step\\(\\) with a target, but the runner has no loss_fn", lambda: without.step(x, target=y))
    refuse("rank 1: step\\(\\) with a target that contains no tensor", lambda: runner.step(x, target=()))
    refuse("rank 0: step\\(\\) with a tensor without dim", lambda: runner.step(torch.ones(()), target=y))
    refuse("rank 0: step\\(\\) with a str, but tensors are divided", lambda: runner.step(x, "x", target=y))
    refuse("rank 0: .* with 3 rows for 4 microbatches; each needs one or more", lambda: runner.step(x[:3], target=y))
    refuse("rank 0: .* with tensors of 8 and 32 rows", lambda: runner.step(x, x[:8], target=y))
    refuse("rank 0: .* requires gradients: they end at", lambda: runner.step(x.clone().requires_grad_(), target=y))
    refuse("rank 0 calls step\\(\\) with 8 rows; rank 1 calls step\\(\\) with 32 rows",
           lambda: runner.step(x[:8], target=y))
    refuse("rank 0 calls step\\(\\) with 32 rows; rank 1 calls eval\\(\\)",
           lambda: runner.eval(x) if me else runner.step(x))
    assert (runner.step(x, target=y) is not None) == me == (without.eval(x) is not None)


def test_wrong_calls_are_refused_on_all_ranks(shared):
    shared(2).run(wrong_calls)


# ---- failures in the middle of a step ----
class Failing(nn.Module):
    """A stage that counts its passes, and calls `act` in pass `at` or in the backward of that pass."""

    def __init__(self, at, act, back=False):
        super().__init__()
        self.layer, self.passes, self.at, self.act, self.back = nn.Linear(6, 6), 0, at, act, back

    def forward(self, x):
        self.passes += 1
        given = self.layer(x)
        if self.passes - 1 == self.at:
            if not self.back:
                return self.act(given)
            given.register_hook(self.act)
        return given


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(_):
    raise KeyError("of the user's")


def be_late(_):
    raise torch_tutti.TimeoutError("another group's")


def run_failing(world, name, culprit, at, act, back=False):
    """Runs steps in which the modules of rank `culprit` call `act` in pass `at`, or in its backward, and raises the
    error. The schedule decides which of the culprit's stages gets that far first."""
    pipeline = Pipeline(name, world.size, 9)
    stages = [Failing(at if world.rank == culprit else None, act, back) for _ in pipeline.stages_of(world.rank)]
    runner = pipeline.runner(stages, loss_of)
    x = torch.ones(18, 6)
    try:
        runner.step(x, target=x)
        # A rank that had finished its part fails in the next step.
        runner.step(x, target=x)
    except torch_tutti.Error as error:
        with pytest.raises(torch_tutti.Error, match="beginning of a step: waits for the other ranks"):
            runner.step(x, target=x)
        raise error


@pytest.mark.parametrize("name, back", [("gpipe", False), ("1f1b", True), ("interleaved", False), ("zb-h1", True),
                                        ("zb-v", False)])
def test_killed_rank_is_named_by_all_others(fresh, name, back):
    outcomes = fresh(3).outcomes(run_failing, name, 1, 3, kill, back)
    assert outcomes[1].died == -signal.SIGKILL
    failures([outcomes[0], outcomes[2]], "PeerError", "pipeline: rank ", ", stage ", " of microbatch ", "rank 1")
    for outcome in (outcomes[0], outcomes[2]):
        assert any(word in outcome.text for word in ("waits for the", "sends the", "asks for the", "has sent the"))


def test_error_names_the_stage_and_the_awaited_message(fresh):
    """If rank 0 dies in the forward of its microbatch 3, rank 1 reports its own stage and the message it waits for."""
    outcomes = fresh(2).outcomes(run_failing, "gpipe", 0, 3, kill)
    failures(outcomes[1:], "PeerError", "pipeline: rank 1, stage 1, forward of microbatch ",
             " for the activation of stage 0 from rank 0: ", "rank 0")


@pytest.mark.parametrize("name, back", [("gpipe", False), ("1f1b", True), ("zb-v", True)])
def test_error_of_a_module_ends_the_waits_of_others(fresh, name, back):
    outcomes = fresh(3).outcomes(run_failing, name, 1, 3, fail, back)
    failures(outcomes[1:2], "KeyError", "of the user's")
    # Exceptions have notes from Python 3.11 on.
    if hasattr(BaseException, "add_note"):
        assert "pipeline: rank 1, stage " in outcomes[1].trace and " of microbatch 3" in outcomes[1].trace
    failures([outcomes[0], outcomes[2]], "AbortedError", "pipeline: rank ", "of microbatch ", "rank 1")


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_error_of_a_module_s_group_keeps_its_class(fresh, name):
    """The error of another group that a module uses keeps its class, also through torch's functions for halves of a
    backward pass, and names the place."""
    outcomes = fresh(2).outcomes(run_failing, name, 1, 3, be_late, True)
    failures(outcomes[1:], "TimeoutError", "pipeline: rank 1, stage ", " of microbatch 3: at work: another group's")
    failures(outcomes[:1], "AbortedError", "pipeline: rank 0, stage ")


def gives_it(given):
    return given


def gives(given):
    return {"a": given}


def gives_none(given):
    return given, None


def many(given, _=None):
    return torch.ones(4)


def run_wrong_output(world, act, loss_fn):
    pipeline = Pipeline("gpipe", world.size, 4)
    runner = pipeline.runner(Failing(1 if world.rank == 0 else None, act), loss_fn)
    runner.step(torch.ones(16, 6), target=torch.ones(16, 6))


@pytest.mark.parametrize("act, text", [
    (gives, "stage 0 returns a dict; it must return a tensor, or a tuple of tensors"),
    (gives_none, "stage 0 returns a tuple with a NoneType; it must return a tensor, or a tuple of tensors")])
def test_outputs_that_are_no_tensors_are_refused(fresh, act, text):
    outcomes = fresh(2).outcomes(run_wrong_output, act, loss_of)
    failures(outcomes[:1], "ValueError", text)
    failures(outcomes[1:], "AbortedError", "rank 1, stage 1, forward of microbatch ",
             " for the activation of stage 0 from rank 0: ")


def test_loss_that_is_no_number_is_refused(fresh):
    outcomes = fresh(2).outcomes(run_wrong_output, gives_it, many)
    failures(outcomes[1:], "ValueError",
             "loss_fn returns a tensor of 4 elements; it must return a tensor with one number")
    failures(outcomes[:1], "AbortedError", "stage 0, ", "microbatch")


# ---- on the wire ----
def test_element_types_have_codes_of_their_own():
    """The codes do not depend on the types of a version of torch. A type without a code is refused."""
    signature = (messages.Part(torch.float32, True, (2, 3)), messages.Part(torch.bfloat16, False, ()),
                 messages.Part(torch.uint64, False, (7,)))
    assert messages._encode(signature) == [0, 1, 2, 2, 3, 1, 0, 0, 15, 0, 1, 7]
    assert messages._decode(messages._encode(signature)) == signature
    with pytest.raises(ValueError, match="pipeline: activations of torch.qint8 cannot be sent; convert them to one of "
                                         "torch.float32, torch.bfloat16"):
        messages._encode((messages.Part(torch.qint8, False, ()),))


@pytest.mark.parametrize("numbers", [[99, 0, 0], [-1, 0, 0], [0, 0, 2, 5], [0, 0, -1], [0], [0, 0, 1, -4]])
def test_unreadable_description_is_refused(numbers):
    with pytest.raises(ValueError, match="a stage has sent a description that this one cannot read"):
        messages._decode(numbers)
