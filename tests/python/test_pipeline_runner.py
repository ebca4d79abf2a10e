"""Tests of Pipeline.runner: all schedules train as one process does, and as on torch's runtime; several tensors may
pass between stages, and their shapes may change."""
import gc

import pytest
import torch
import torch.distributed as dist
from test_pipelines import SCHEDULES
from test_pipelining import Block, check_gradients, data, loss_of, step
from torch import nn
from torch.distributed.pipelining import PipelineStage
from zero_training import refused

import torch_tutti
from torch_tutti import Pipeline


def possible(name, size, microbatches):
    if name == "dualpipe-v":
        return microbatches >= 2 * size
    return name in ("naive", "gpipe") or microbatches >= size and (name != "interleaved" or microbatches % size == 0)


def runner_of(pipeline, blocks, loss_fn=loss_of, group=None):
    return pipeline.runner([blocks[i] for i in pipeline.stages_of(dist.get_rank(group))], loss_fn, group)


# ---- training ----
def trains(world, name, microbatches):
    """The rows of the batch may be a multiple of the microbatches or not. The judge has the whole batch at once."""
    pipeline = Pipeline(name, world.size, microbatches)
    mine, count = pipeline.stages_of(world.rank), pipeline.stages
    blocks, model = ([Block(number) for number in range(count)] for _ in range(2))
    runner = runner_of(pipeline, blocks)
    optimizers = [torch.optim.SGD([p for block in of for p in block.parameters()], lr=0.1) for of in (blocks, model)]
    for turn in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = data(count, turn)
        expected = loss_of(nn.Sequential(*model)(x), y)
        expected.backward()
        found = runner.step(x, target=y)
        assert (found is not None) == (count - 1 in mine) == bool(runner.losses)
        if found is not None:
            torch.testing.assert_close(found, expected.detach())
            assert len(runner.losses) == microbatches and not found.requires_grad
        check_gradients(mine, blocks, model)
        assert runner.held == pipeline.time().held[world.rank]
        for optimizer in optimizers:
            optimizer.step()
    output, loss = runner.eval(x), runner.eval(x, target=y)
    if count - 1 in mine:
        torch.testing.assert_close(output, nn.Sequential(*model)(x).detach())
        torch.testing.assert_close(loss, loss_of(output, y))


def trains_in_all_ways(world, name):
    for microbatches in [m for m in range(1, 9) if possible(name, world.size, m)]:
        trains(world, name, microbatches)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_trains_as_one_process(shared, size, name):
    shared(size).run(trains_in_all_ways, name)


def on_both(world, name, microbatches):
    """Compares losses and gradients on tutti's runner with those on torch's runtime."""
    pipeline = Pipeline(name, world.size, microbatches)
    mine, count = pipeline.stages_of(world.rank), pipeline.stages
    ours, theirs = ([Block(number) for number in range(count)] for _ in range(2))
    x, y = data(count, 3)
    runner = runner_of(pipeline, ours)
    runner.step(x, target=y)
    stages = [PipelineStage(theirs[i], i, count, torch.device("cpu")) for i in mine]
    losses = step(pipeline.on_torch(stages, loss_fn=loss_of), mine, count, x, y)
    if losses is not None:
        assert torch.equal(torch.stack(runner.losses), torch.stack(losses).detach())
    check_gradients(mine, ours, theirs)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [2, 4])
def test_losses_and_gradients_are_those_on_torch(shared, size, name):
    shared(size).run(on_both, name, 8)


# ---- tensors between stages ----
class Several(nn.Module):
    """A stage that passes on a view, a mask without gradients, a tensor that the last stage does not use, and one that
    depends on no input. It uses weights twice, with others in between."""

    def __init__(self, number, count):
        super().__init__()
        torch.manual_seed(number)
        self.last = number == count - 1
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.alone = nn.Parameter(torch.randn(3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x, mask=None, unused=None, alone=None):
        mask = x[:, 0] > 0 if mask is None else mask
        x = self.outer(torch.tanh(self.inner(torch.tanh(self.outer(x)))))
        x = self.frozen(x) * mask[:, None] + (0 if alone is None else alone.sum())
        return (x, self.alone.exp()) if self.last else (x.view(-1, 2, 2).flatten(1), mask, x * 2, self.alone.exp())


def whole_of(stages, x):
    given = (x,)
    for stage in stages:
        given = stage(*given)
    return given


def loss_of_several(given, y):
    return (given[0] - y).square().mean() + given[1].sum()


def several(world, name):
    pipeline = Pipeline(name, world.size, 4)
    ours, judge = ([Several(number, pipeline.stages) for number in range(pipeline.stages)] for _ in range(2))
    runner = runner_of(pipeline, ours, loss_of_several)
    for rows in (8, 8, 5, 9, 8):
        torch.manual_seed(rows)
        x, y = torch.randn(2, rows, 4)
        expected = loss_of_several(whole_of(judge, x), y)
        expected.backward()
        found = runner.step(x, target=y)
        if found is not None:
            torch.testing.assert_close(found, expected.detach())
        check_gradients(pipeline.stages_of(world.rank), ours, judge)
        given = runner.eval(x)
        if given is not None:
            torch.testing.assert_close(given[0], whole_of(judge, x)[0].detach())


@pytest.mark.parametrize("name", SCHEDULES)
def test_several_tensors_of_changing_shapes_pass(shared, name):
    shared(2).run(several, name)


class Words(nn.Module):
    """A stage that takes integers or 16-bit numbers and returns 16-bit numbers. Their length changes from microbatch to
    microbatch."""

    def __init__(self, number, count):
        super().__init__()
        torch.manual_seed(number)
        self.words = nn.Embedding(10, 4) if number == 0 else None
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if self.words is not None:
            x = self.words(x[:, :int(x[0, 0]) + 1])
        return self.layer(x.float()).bfloat16()


def lengths(world, name):
    pipeline = Pipeline(name, world.size, 4)
    ours, judge = ([Words(number, pipeline.stages) for number in range(pipeline.stages)] for _ in range(2))
    runner = runner_of(pipeline, ours, lambda given, y: given.float().mean() * y.mean())
    for turn in range(4):
        torch.manual_seed(turn)
        x, y = torch.randint(8, (4, 9)), (torch.rand(4), torch.rand(4))[turn % 2]
        losses = [nn.Sequential(*judge)(a).float().mean() * b.mean() for a, b in zip(x.chunk(4), y.chunk(4))]
        (sum(losses) / 4).backward()
        found = runner.step(x, target=y)
        if found is not None:
            torch.testing.assert_close(found, sum(losses).detach() / 4)
        for number in pipeline.stages_of(world.rank):
            for mine, its in zip(ours[number].parameters(), judge[number].parameters()):
                torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("name", SCHEDULES)
def test_lengths_may_change_in_a_step(shared, name):
    shared(2).run(lengths, name)


class Large(nn.Module):
    """A stage with messages larger than the memory between two ranks. Both ranks send, so neither may wait for its
    send."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.scale


def large(world, name):
    pipeline = Pipeline(name, world.size, 4)
    runner = pipeline.runner([Large() for _ in pipeline.stages_of(world.rank)], lambda a, b: (a - b).square().mean())
    x = torch.ones(4, 1 << 20)
    for _ in range(2):
        found = runner.step(x, target=2 * x)
        assert found is None or found == 1


@pytest.mark.parametrize("name", ["gpipe", "zb-v"])
def test_both_ranks_may_send_large_messages(shared, name):
    shared(2).run(large, name)


def beside_data_parallel(world):
    """Two pipelines of two ranks: gradients of a stage are averaged after the step; targets are tuples."""
    grid = torch_tutti.grid(pp=2)
    pipeline = Pipeline("zb-v", 2, 4)
    blocks, model = ([Block(number) for number in range(pipeline.stages)] for _ in range(2))
    runner = runner_of(pipeline, blocks, lambda given, y: loss_of(given, y[0] * y[1]), grid.group("pp"))
    batches = [data(pipeline.stages, seed) for seed in (20, 21)]
    x, y = batches[grid.index("dp")]
    runner.step(x, target=(y, torch.ones_like(y)))
    mine = pipeline.stages_of(grid.index("pp"))
    for parameter in [p for number in mine for p in blocks[number].parameters()]:
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=grid.group("dp"))
    sum(loss_of(nn.Sequential(*model)(x), y) / 2 for x, y in batches).backward()
    check_gradients(mine, blocks, model)


def test_pipelines_beside_data_parallel(shared):
    shared(4).run(beside_data_parallel)


def alone(world):
    """Runs all stages on one rank, without messages."""
    group = [dist.new_group([rank]) for rank in range(world.size)][world.rank]
    for name, chunks in (("interleaved", 3), ("zb-v", 2), ("1f1b", 1)):
        pipeline = Pipeline(name, 1, 4, chunks)
        blocks, model = (nn.Sequential(*[Block(number) for number in range(pipeline.stages)]) for _ in range(2))
        runner = pipeline.runner(blocks[0] if chunks == 1 else nn.ModuleList(blocks), loss_of, group)
        x, y = data(pipeline.stages, 1)
        expected = loss_of(model(x), y)
        expected.backward()
        torch.testing.assert_close(runner.step(x, target=y), expected.detach())
        check_gradients(range(pipeline.stages), blocks, model)


def test_one_rank_runs_all_stages(shared):
    shared(2).run(alone)


# ---- timeline, memory, and division into stages ----
def tells(world):
    pipeline = Pipeline("1f1b", world.size, 4)
    runner = runner_of(pipeline, [Block(number) for number in range(pipeline.stages)])
    assert runner.timing().makespan == 0 and runner.timeline == []
    x, y = data(pipeline.stages, 1)
    runner.step(x, target=y)
    assert [span.action for span in runner.timeline] == pipeline.actions(world.rank)
    assert all(span.begin <= span.end for span in runner.timeline)
    assert all(a.end <= b.begin for a, b in zip(runner.timeline, runner.timeline[1:]))
    timing, predicted = runner.timing(), pipeline.time()
    assert timing.held == predicted.held and list(map(len, timing.ends)) == list(map(len, predicted.ends))
    assert timing.ends[world.rank] == [span.end for span in runner.timeline]
    assert max(of[-1] for of in timing.ends) == timing.makespan and all(0 <= b < 1 for b in timing.bubbles)
    runner.eval(x)
    assert {span.action.work for span in runner.timeline} == {"F"} and runner.held == 0


def test_timeline_has_the_actions_of_the_schedule(shared):
    shared(2).run(tells)


class Counted(torch.autograd.Function):
    """An identity that counts the tokens which graphs hold: now (`alive`), and the maximum (`most`)."""
    alive = most = 0

    class Token:
        def __init__(self):
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

        def __del__(self):
            Counted.alive -= 1

    @staticmethod
    def forward(context, x):
        context.token = Counted.Token()
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.second(Counted.apply(self.first(x)))


def lets_go(world, name):
    """Graphs are freed without the collector of cycles, also those in torch's functions for halves of a backward
    pass."""
    pipeline = Pipeline(name, world.size, 8 if name != "interleaved" else 9)
    runner = pipeline.runner([Counting() for _ in pipeline.stages_of(world.rank)], loss_of)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            Counted.most, x = 0, torch.ones(18, 6)
            runner.step(x, target=x)
            assert Counted.alive == 0 and Counted.most == runner.held == pipeline.time().held[world.rank]
        runner.eval(x)
        assert Counted.alive == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", SCHEDULES)
def test_runner_holds_as_much_as_the_schedule_predicts(shared, name):
    shared(3).run(lets_go, name)


def test_split_divides_layers_evenly():
    layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(7)])
    parts = Pipeline("zb-v", 2, 4).split(layers)
    assert list(map(len, parts)) == [2, 2, 2, 1]
    assert [name for part in parts for name in part.state_dict()] == list(layers.state_dict())
    assert list(map(len, Pipeline("1f1b", 2, 4).split([nn.ReLU(), nn.ReLU(), nn.ReLU()]))) == [2, 1]
    assert list(map(len, Pipeline("1f1b", 2, 4).split(nn.ModuleList([nn.ReLU(), nn.ReLU()])))) == [1, 1]
    refused(ValueError, "3 layers for 4 stages; each stage needs at least one", lambda: Pipeline("1f1b", 4, 4).split(
        layers[:3]))
    refused(ValueError, "a list, not a Linear", lambda: Pipeline("1f1b", 4, 4).split(layers[0]))
