"""Tests of pipelines whose loss_fn returns (sum, count): losses and gradients are those of one process with the whole
batch, where microbatches, or all data of a rank, have no token."""
import pytest
import torch
import torch.distributed as dist
from test_failures import failures
from test_pipelining import BATCH, WIDTH, Block, check_gradients
from torch import nn
from torch.nn.functional import cross_entropy
from zero_training import refused

import torch_tutti
from torch_tutti import Pipeline
from torch_tutti._pipeline_sums import Sums

IGNORED = -100


def sum_and_count(output, y):
    return cross_entropy(output, y, reduction="sum", ignore_index=IGNORED), (y != IGNORED).sum()


def batch_of(seed, ignored):
    """Returns inputs and classes. Classes in the slices `ignored` are IGNORED, so they are no tokens."""
    torch.manual_seed(seed)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(WIDTH, (BATCH,))
    for rows in ignored:
        y[rows] = IGNORED
    return x, y


def pair_of(pipeline, rank, group=None, replicas=None, loss_fn=sum_and_count):
    """Returns the blocks of all stages, the same blocks for one process, and a runner with the stages of a rank."""
    blocks, model = ([Block(number) for number in range(pipeline.stages)] for _ in range(2))
    stages = [blocks[number] for number in pipeline.stages_of(rank)]
    return blocks, model, pipeline.runner(stages, loss_fn, group, replicas)


def whole_loss(model, x, y):
    loss = cross_entropy(nn.Sequential(*model)(x), y, ignore_index=IGNORED)
    loss.backward()
    return loss.detach()


# ---- one pipeline ----
def trains(world, name):
    """Gradients of several steps add up in the same tensors."""
    pipeline = Pipeline(name, world.size, 6)
    mine = pipeline.stages_of(world.rank)
    blocks, model, runner = pair_of(pipeline, world.rank)
    # Tokens are in all microbatches; in all but the first one; in the last row only; in every second row.
    for turn, ignored in enumerate(([], [slice(0, 9)], [slice(0, BATCH - 1)], [slice(0, None, 2)])):
        x, y = batch_of(turn, ignored)
        expected = whole_loss(model, x, y)
        before = [p.grad for number in mine for p in blocks[number].parameters()]
        found = runner.step(x, target=y, **({"count": int((y != IGNORED).sum())} if turn == 3 else {}))
        after = [p.grad for number in mine for p in blocks[number].parameters()]
        assert not turn or all(one is other for one, other in zip(before, after))
        check_gradients(mine, blocks, model)
        loss = runner.eval(x, target=y)
        if found is not None:
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(loss, expected)
            assert not found.requires_grad and len(runner.losses) == 6 and torch.stack(runner.losses).isfinite().all()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"])
def test_losses_are_those_of_one_process(shared, name):
    shared(2).run(trains, name)


def has_no_token(world):
    """Without tokens, loss and gradients are 0 and not NaN."""
    pipeline = Pipeline("1f1b", world.size, 4)
    blocks, _, runner = pair_of(pipeline, world.rank)
    x, y = batch_of(1, [slice(None)])
    found = runner.step(x, target=y)
    assert found is None or found == 0
    assert all(p.grad.eq(0).all() for p in blocks[world.rank].parameters())


def test_batch_without_tokens_gives_zeros(shared):
    shared(2).run(has_no_token)


# ---- data parallel replicas ----
def beside_replicas(world, name):
    """The second replica has 3 tokens, then none, then 5. The average of gradients is the gradient of both batches."""
    grid = torch_tutti.grid(pp=2)
    pipeline = Pipeline(name, 2, 4)
    group, replicas, here = grid.group("pp"), grid.group("dp"), grid.index("dp")
    blocks, model, runner = pair_of(pipeline, grid.index("pp"), group, replicas)
    mine = pipeline.stages_of(grid.index("pp"))
    parameters = [p for number in mine for p in blocks[number].parameters()]
    for turn, ignored in enumerate(([slice(3, None)], [slice(None)], [slice(5, None)])):
        for p in [*parameters, *(p for block in model for p in block.parameters())]:
            p.grad = None
        batches = [batch_of(turn, [slice(0, None, 3)]), batch_of(turn + 10, ignored)]
        expected = whole_loss(model, *(torch.cat(parts) for parts in zip(*batches)))
        x, y = batches[here]
        found = runner.step(x, target=y, **({"count": float((y != IGNORED).sum())} if turn == 2 else {}))
        loss = runner.eval(x, target=y)
        for p in parameters:
            dist.all_reduce(p.grad, dist.ReduceOp.AVG, group=replicas)
        check_gradients(mine, blocks, model)
        if found is not None:
            torch.testing.assert_close((found, loss), (expected, expected))


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_replicas_with_different_counts_train_as_one_process(shared, name):
    shared(4).run(beside_replicas, name)


# ---- mistakes ----
def wrong_counts(world):
    x, y = batch_of(1, [])
    _, _, runner = pair_of(Pipeline("1f1b", 2, 4), world.rank)
    refused(ValueError, "rank 1: step\\(\\) with a count of -1; it must be a number of at least 0",
            lambda: runner.step(x, target=y, count=-1))
    _, _, runner = pair_of(Pipeline("1f1b", 2, 4), world.rank, loss_fn=cross_entropy)
    runner.step(x, target=y)
    refused(ValueError, "rank 1: step\\(\\) with a count, but loss_fn does not return .sum, count.",
            lambda: runner.step(x, target=y, count=32))


def test_wrong_counts_are_refused(shared):
    shared(2).run(wrong_counts)


def test_results_that_are_no_sum_and_count_are_refused():
    sums, loss = Sums(4), torch.ones(())
    for text, result in (("a tuple .Tensor, int, int.; a tuple must be .sum, count.", (loss, 1, 2)),
                         ("a tuple .int, int.; a tuple must be .sum, count.", (1, 2)),
                         ("loss_fn returns a count of -1; it must be a number of at least 0", (loss, -1)),
                         ("loss_fn returns a count of nan", (loss, torch.tensor(float("nan"))))):
        refused(ValueError, text, lambda: sums.add(0, result))


def changes(output, y):
    return sum_and_count(output, y) if y[0] else cross_entropy(output, y)


def give(world, loss_fn, targets, count=None):
    _, _, runner = pair_of(Pipeline("1f1b", 2, 4), world.rank, loss_fn=loss_fn)
    for target in targets:
        y = torch.tensor(target).repeat_interleave(BATCH // len(target))
        runner.step(torch.ones(BATCH, WIDTH), target=y, count=count)


@pytest.mark.parametrize("loss_fn, targets, count, text", [
    (changes, [[1, 0]], None, "returns (sum, count) for some microbatches and a loss for others"),
    (changes, [[1], [0]], None, "loss_fn returned (sum, count) in the first step, and a loss in this one"),
    (changes, [[0], [1]], None, "loss_fn returned a loss in the first step, and (sum, count) in this one"),
    (sum_and_count, [[1]], 33, "counts that loss_fn returned sum to 32, but step() was called with count=33")])
def test_results_that_change_are_refused(fresh, loss_fn, targets, count, text):
    """The rank of the last stage raises, and no rank waits for it."""
    outcomes = fresh(2).outcomes(give, loss_fn, targets, count)
    failures(outcomes[1:], "ValueError", text)
    assert outcomes[0].error in ("ValueError", "AbortedError") or targets == [[0], [1]]
