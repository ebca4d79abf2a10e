"""Tests of keyword arguments of a pipeline's stages: each microbatch gets its rows of masks, and other
arguments whole."""
import pytest
import torch
from test_pipelining import check_gradients, loss_of
from torch import nn
from zero_training import refused

from torch_tutti import Pipeline

WIDTH, LENGTH = 8, 5


class Attention(nn.Module):
    """A stage that needs a mask for each row, positions for all rows, a factor without dimensions, and an object."""

    def __init__(self, number):
        super().__init__()
        torch.manual_seed(number)
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=torch.float64)

    def forward(self, x, mask, positions, *, factor, config):
        cos, sin = positions
        assert config["mode"] is MODE and mask.shape == x.shape[:2] and cos.shape == (1, LENGTH, WIDTH)
        x = x * cos + x.tanh() * sin
        return x + factor * self.layer(x, x, x, key_padding_mask=mask, need_weights=False)[0]


MODE = object()


def batch_of(rows, seed):
    torch.manual_seed(seed)
    mask = torch.arange(LENGTH)[None] >= torch.randint(1, LENGTH + 1, (rows, 1))
    x, y, *positions = torch.randn(4, rows, LENGTH, WIDTH, dtype=torch.float64)
    keywords = {"mask": mask, "positions": tuple(part[:1] for part in positions), "factor": torch.tensor(0.5),
                "config": {"mode": MODE}}
    return x, y, keywords


def run_whole(model, x, keywords):
    for stage in model:
        x = stage(x, **keywords)
    return x


def trains(world, name):
    pipeline = Pipeline(name, world.size, 6)
    mine = pipeline.stages_of(world.rank)
    blocks, model = ([Attention(number) for number in range(pipeline.stages)] for _ in range(2))
    runner = pipeline.runner([blocks[number] for number in mine], loss_of)
    for rows in 12, 15, 6:
        x, y, keywords = batch_of(rows, rows)
        expected = loss_of(run_whole(model, x, keywords), y)
        expected.backward()
        found = runner.step(x, target=y, **keywords)
        check_gradients(mine, blocks, model)
        output = runner.eval(x, **keywords)
        if found is not None:
            torch.testing.assert_close(found, expected.detach())
            torch.testing.assert_close(output, run_whole(model, x, keywords).detach())


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-v"])
def test_masks_reach_every_stage(shared, name):
    shared(3).run(trains, name)


class Named(nn.Module):
    """A stage that takes its input by keyword if it is the first one, and by position otherwise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden=None, *, inputs=None):
        return self.layer(inputs if hidden is None else hidden)


def without_positions(world):
    x, y = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(3))
    stage, model = Named(), [Named(), Named()]
    runner = Pipeline("1f1b", 2, 4).runner(stage, loss_of)
    runner.step(target=y, inputs=x)
    loss_of(model[1](model[0](inputs=x)), y).backward()
    torch.testing.assert_close(stage.layer.weight.grad, model[world.rank].layer.weight.grad)
    mistakes = (("of 7 and 8 rows; a keyword argument for all rows needs a first dimension of 1", x, x[1:]),
                ("with a tensor that requires gradients", x, x.clone().requires_grad_()),
                ("rank 0: step\\(\\) without arguments", None, x[:1]))
    for text, given, named in mistakes:
        refused(ValueError, text, lambda: runner.step(*([] if given is None else [given]), target=y, inputs=named))
    refused(ValueError, "rank 0 calls .* with 8 rows; rank 1 calls .* with 7 rows",
            lambda: runner.step(target=y[world.rank:], inputs=x[world.rank:]))


def test_first_stage_takes_keywords_and_refuses_mistakes(shared):
    shared(2).run(without_positions)
