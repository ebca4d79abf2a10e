"""Tests of torch_tutti.ps with optimizers that look at whole tensors: they are refused if slices have pieces of
parameters, and train as one process does if slices have whole ones."""
from functools import partial

import pytest
import torch
from test_ps import STEPS, by_one, sgd, train
from test_zero_optimizers import Lamb, Lars
from training import flat, network
from zero_training import refused

from torch_tutti import ps
from torch_tutti.ps._slices import cut

# Bytes of a slice: less than some parameters of network() have.
SMALL = 1000


def run_refusals(world):
    def join(optimizer, **options):
        return lambda: ps.join(network(), optimizer, slice_bytes=SMALL, **options)
    refused(ValueError, "ps: Lars looks at whole tensors, but a slice has pieces of them; use .*whole_parameters",
            join(Lars))
    refused(ValueError, "ps: Adafactor looks at whole tensors", join(torch.optim.Adafactor))
    refused(ValueError, "ps: Lamb clips the norm of all gradients by its option max_grad_norm.*set max_grad_norm=None",
            join(Lamb, whole_parameters=True))
    refused(ValueError, "ps: LBFGS computes the loss several times in a step",
            join(lambda named: torch.optim.LBFGS([piece for _, piece in named])))
    refused(ValueError, "ps: SparseAdam needs sparse gradients", join(torch.optim.SparseAdam))


def test_optimizers_of_whole_tensors_are_refused(shared):
    shared(3).run(run_refusals)


def run_whole(world, optimizer):
    model = network(seed=world.rank)
    node = ps.join(model, optimizer, servers=2, slice_bytes=SMALL, whole_parameters=True)
    train(node, model, STEPS)
    if world.rank >= 2:
        judge = by_one([range(2, world.size)] * STEPS, optimizer, network(0))
        torch.testing.assert_close(flat(model.parameters()), judge, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", [Lars, partial(Lamb, max_grad_norm=None), torch.optim.Adafactor, sgd])
def test_whole_parameters_are_as_in_one_process(shared, optimizer):
    shared(4).run(run_whole, optimizer)


def test_slices_of_whole_parameters():
    shapes = [(3, 5), (), (0, 4), (1000,), (7,), (50, 2)]
    slices = cut([torch.empty(shape) for shape in shapes], 400, whole_parameters=True)
    assert [[piece.parameter for piece in one.pieces] for one in slices] == [[0, 1], [3], [4], [5]]
    assert all((piece.begin, piece.end) == (0, torch.Size(shapes[piece.parameter]).numel())
               for one in slices for piece in one.pieces)
