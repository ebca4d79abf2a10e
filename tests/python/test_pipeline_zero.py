"""Tests of pipelines whose stages zero.shard has divided, beside data parallel replicas: parameters are those of one
process, also with schedules that divide backward passes, and losses that are sums."""
import pytest
import torch
from test_failures import failures
from test_pipeline_sums import IGNORED, batch_of, sum_and_count, whole_loss
from test_pipelining import Block
from torch import nn
from torch.nn.functional import cross_entropy

import torch_tutti
from torch_tutti import Pipeline, zero


class Spare(Block):
    """A stage with a parameter that no step uses, and that weight decay must not change."""

    def __init__(self, number):
        super().__init__(number)
        self.spare = nn.Parameter(torch.ones(5))


def sharded_runner(world, name, stage, loss_fn=sum_and_count):
    """Returns this rank's stages and their numbers, the whole model, the runner, zero's optimizer, and the grid."""
    grid = torch_tutti.grid(pp=2)
    pipeline = Pipeline(name, 2, 4)
    mine = pipeline.stages_of(grid.index("pp"))
    blocks, model = (nn.ModuleList(Spare(number) for number in range(pipeline.stages)) for _ in range(2))
    stages = nn.ModuleList(blocks[number] for number in mine)
    runner = pipeline.runner(stages, loss_fn, grid.group("pp"), grid.group("dp"))
    _, optimizer = zero.shard(stages, torch.optim.AdamW(stages.parameters(), lr=0.01), stage=stage,
                              group=grid.group("dp"))
    return mine, stages, model, runner, optimizer, grid


def batches(turn):
    return [batch_of(turn, [slice(0, None, 3)]), batch_of(turn + 10, [slice(3 * turn, None)])]


def trains(world, name, stage, loss_fn):
    mine, stages, model, runner, optimizer, grid = sharded_runner(world, name, stage, loss_fn)
    judge = torch.optim.AdamW(model.parameters(), lr=0.01)
    for turn in range(3):
        # A mean over rows is that of one process only if all rows are tokens.
        given = batches(turn) if loss_fn is sum_and_count else [batch_of(turn, []), batch_of(turn + 10, [])]
        judge.zero_grad()
        whole_loss(model, *(torch.cat(parts) for parts in zip(*given)))
        judge.step()
        x, y = given[grid.index("dp")]
        runner.step(x, target=y)
        optimizer.step()
        for number, block in zip(mine, stages):
            torch.testing.assert_close(dict(block.named_parameters()), dict(model[number].named_parameters()))


@pytest.mark.parametrize("name, stage, loss_fn", [
    ("1f1b", 0, sum_and_count), ("zb-h1", 1, cross_entropy), ("zb-v", 2, sum_and_count),
    ("dualpipe-v", 3, sum_and_count)])
def test_sharded_stages_train_as_one_process(shared, name, stage, loss_fn):
    shared(4).run(trains, name, stage, loss_fn)


def accumulates(world):
    """Gradients of two steps are averaged together, in a backward pass that the program adds."""
    mine, stages, model, runner, optimizer, grid = sharded_runner(world, "zb-v", 2)
    with optimizer.no_sync():
        for turn in range(2):
            whole_loss(model, *(torch.cat(parts) for parts in zip(*batches(turn))))
            x, y = batches(turn)[grid.index("dp")]
            runner.step(x, target=y, count=int((y != IGNORED).sum()))
    sum(p.view(-1)[0] * 0 for p in stages.parameters()).backward()
    for number, block in zip(mine, stages):
        for (name, p), expected in zip(block.named_parameters(), model[number].parameters()):
            if name != "spare":
                torch.testing.assert_close(p.grad.norm(), expected.grad.norm())


def test_gradients_of_two_steps_add_up(shared):
    shared(4).run(accumulates)


def without_count(world):
    _, _, _, runner, optimizer, grid = sharded_runner(world, "1f1b", 1)
    x, y = batches(1)[grid.index("dp")]
    with optimizer.no_sync():
        runner.step(x, target=y)


def test_count_that_comes_too_late_is_refused(fresh):
    failures(fresh(4).outcomes(without_count), "ValueError", "loss_fn returns (sum, count) in a block of no_sync(), "
             "where zero adds up the gradients of several steps, which cannot change at the end of this step: pass the "
             "batch's count to step(count=...)")
