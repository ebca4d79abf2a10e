"""Tests of pipeline parallelism: every schedule of torch.distributed.pipelining, whose messages between stages are send
and receive in batches. Losses, gradients and outputs are compared with the same model in one process."""
import ast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class

MICROBATCHES, BATCH, WIDTH = 8, 32, 6
LOOP = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"]
VEE = ["ZBVZeroBubble", "DualPipeV"]
loss_of = torch.nn.functional.mse_loss


class Block(torch.nn.Module):
    """A stage that widens its input by one, so that every stage sends another shape than it receives."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(number)
        self.first = torch.nn.Linear(WIDTH + number, WIDTH + number)
        self.second = torch.nn.Linear(WIDTH + number, WIDTH + number + 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) + x)


def whole(count):
    return torch.nn.Sequential(*[Block(number) for number in range(count)])


def data(count, seed):
    torch.manual_seed(seed)
    return torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH + count)


def reference(model, x, y):
    """Returns the losses of the microbatches, and leaves the gradients of their mean in the model."""
    losses = [loss_of(model(a), b) for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES))]
    (sum(losses) / MICROBATCHES).backward()
    return torch.stack(losses).detach()


def places(name, rank, size):
    """Returns the stages of a rank, and the number of all stages."""
    if name in LOOP:
        return [rank, rank + size], 2 * size
    if name in VEE:
        return [rank, 2 * size - 1 - rank], 2 * size
    return [rank], size


def schedule_of(name, mine, blocks, count, group=None):
    stages = [PipelineStage(blocks[i], i, count, torch.device("cpu"), group=group) for i in mine]
    kind = get_schedule_class(name)
    return kind(stages if issubclass(kind, PipelineScheduleMulti) else stages[0], MICROBATCHES, loss_fn=loss_of)


def step(schedule, mine, count, x, y):
    """Makes one step. Returns the losses on the rank of the last stage, else None."""
    losses = [] if count - 1 in mine else None
    schedule.step(*([x] if 0 in mine else []), target=y if losses is not None else None, losses=losses)
    return losses


def check_gradients(mine, blocks, model):
    for number in mine:
        for (name, ours), theirs in zip(blocks[number].named_parameters(), model[number].parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda text: f"stage {number}, {name}: {text}")


def trains(world, name):
    mine, count = places(name, world.rank, world.size)
    blocks, model = whole(count), whole(count)
    schedule = schedule_of(name, mine, blocks, count)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (blocks, model)]
    for turn in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = data(count, turn)
        expected = reference(model, x, y)
        losses = step(schedule, mine, count, x, y)
        if losses is not None:
            torch.testing.assert_close(torch.stack(losses).detach(), expected)
        check_gradients(mine, blocks, model)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("name", ["GPipe", "1F1B"] + LOOP + VEE)
@pytest.mark.parametrize("size", [2, 4])
def test_a_schedule_trains_as_one_process(shared, size, name):
    shared(size).run(trains, name)


def test_every_schedule_of_torch_is_tested():
    """The table above has every schedule that torch knows by name, except base classes."""
    with pytest.raises(ValueError) as unknown:
        get_schedule_class("")
    known = ast.literal_eval(str(unknown.value).split("options are ")[1])
    bases = [name for name in known if get_schedule_class(name) in (PipelineScheduleSingle, PipelineScheduleMulti)]
    assert sorted(known) == sorted(["GPipe", "1F1B"] + LOOP + VEE + bases)


def evaluates(world):
    """Evaluates without gradients. The outputs of the microbatches are put together."""
    mine, count = places("Interleaved1F1B", world.rank, world.size)
    model = whole(count)
    schedule = schedule_of("Interleaved1F1B", mine, model, count)
    x, y = data(count, 5)
    losses = [] if count - 1 in mine else None
    output = schedule.eval(*([x] if 0 in mine else []), target=y if losses is not None else None, losses=losses)
    if losses is not None:
        torch.testing.assert_close(output, model(x))
        torch.testing.assert_close(torch.stack(losses).mean(), loss_of(model(x), y))
    assert all(p.grad is None for p in model.parameters())


def test_evaluation_joins_the_outputs_of_microbatches(shared):
    shared(2).run(evaluates)


def traced(world):
    """torch traces the model and splits it into stages at split points."""
    model, judge = whole(2), whole(2)
    x, y = data(2, 9)
    pipe = pipeline(model, (x.chunk(MICROBATCHES)[0],), split_spec={"1": SplitPoint.BEGINNING})
    schedule = get_schedule_class("1F1B")(pipe.build_stage(world.rank, torch.device("cpu")), MICROBATCHES,
                                          loss_fn=loss_of)
    losses = step(schedule, [world.rank], 2, x, y)
    expected = reference(judge, x, y)
    if losses is not None:
        torch.testing.assert_close(torch.stack(losses).detach(), expected)
    ours = dict(pipe.get_stage_module(world.rank).named_parameters())
    theirs = dict(judge.named_parameters())
    assert ours and all(torch.allclose(p.grad, theirs[name].grad, rtol=1e-5) for name, p in ours.items())


def test_model_that_torch_splits_trains_as_one_process(shared):
    shared(2).run(traced)


def beside_data_parallel(world):
    """Two pipelines of two stages; the copies of a stage average their gradients, as DDP would."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    mine, count = [mesh.get_local_rank("pipe")], 2
    blocks, model = whole(count), whole(count)
    schedule = schedule_of("1F1B", mine, blocks, count, mesh.get_group("pipe"))
    batches = [data(count, seed) for seed in (20, 21)]
    step(schedule, mine, count, *batches[mesh.get_local_rank("data")])
    for parameter in blocks[mine[0]].parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=mesh.get_group("data"))
    for x, y in batches:
        reference(model, x, y)
    for parameter in model.parameters():
        parameter.grad /= 2
    check_gradients(mine, blocks, model)


def test_pipelines_train_beside_data_parallelism(shared):
    shared(4).run(beside_data_parallel)
