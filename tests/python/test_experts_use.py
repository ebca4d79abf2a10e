"""Tests of experts as programs use them: views and types of all kinds, no tokens at all, gradients on some ranks,
experts without rows, work in place, checkpointed activations, batches side by side, memory that is freed anywhere,
groups that end."""
import gc
import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from test_experts import numbers
from torch.utils.checkpoint import checkpoint
from torch_tutti import experts
from torch_tutti.experts import _pool
from torch_tutti.experts._hosts import Hosts
from torch_tutti.experts._pool import Pool

CHOSEN = torch.stack([torch.arange(9) % 4, torch.arange(1, 10) % 4], 1)


def through(dispatcher, x, chosen, weights, expert=lambda batch: batch.tokens * 2):
    batch = dispatcher.dispatch(x, chosen)
    return dispatcher.combine(expert(batch), weights, batch)


def gradients(y, *leaves, **options):
    return torch.autograd.grad(y.square().sum(), leaves, **options)


def on_both(world, case):
    for group in None, world.gloo:
        case(world, group)


# ---- arguments ----
def views(world, group):
    dispatcher, base = experts.Dispatcher(4, group), numbers(world.rank, 24, 18).requires_grad_()
    x, chosen = base.t()[::2, 1::3], CHOSEN.t().contiguous().t().to(torch.uint8)
    for weights in (numbers(3, 2, 9).t().requires_grad_(), numbers(3, 9, 1).expand(9, 2).requires_grad_(),
                    numbers(3, 9, 2).double().requires_grad_()):
        y, expected = through(dispatcher, x, chosen, weights), x * 2 * weights.sum(1, keepdim=True).float()
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradients(y.t(), base, weights),
                                   gradients(expected, base, weights, retain_graph=True), rtol=1e-5, atol=1e-5)
    # Each token chooses each of 4 experts several times, or each of 64 once.
    many = torch.arange(64).expand(9, 64)
    for of, weights in ((4, numbers(4, 9, 64).requires_grad_()), (64, numbers(4, 9, 64).requires_grad_())):
        y = through(experts.Dispatcher(of, group), x, many % of, weights)
        torch.testing.assert_close(y, x * 2 * weights.sum(1, keepdim=True), rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        y = through(dispatcher, x, chosen, torch.ones(9, 2))
        torch.testing.assert_close(y, x * 4)


def nothing(world, group):
    for settings in {}, {"capacity": 3}, {"capacity": 3, "pad": True}:
        dispatcher = experts.Dispatcher(4, group, **settings)
        # First no rank has tokens; then no token chooses an expert.
        for count, chosen in (0, CHOSEN[:0]), (3, CHOSEN[:3] * 0 - 1):
            x, weights = numbers(1, count, 8).requires_grad_(), numbers(2, count, 2).requires_grad_()
            y = through(dispatcher, x, chosen, weights) + dispatcher.run(lambda rows, _: rows, x, weights, chosen, 2)
            assert y.shape == (count, 8) and not y.any()
            assert not any(gradient.any() for gradient in gradients(y, x, weights))


@pytest.mark.parametrize("case", [views, nothing])
def test_views_and_empty_batches_work(shared, case):
    shared(2).run(on_both, case)


# ---- graphs ----
def some_ranks(world, group):
    """Tokens of rank 0 alone have gradients."""
    dispatcher, x = experts.Dispatcher(4, group), numbers(world.rank, 9, 8).requires_grad_(world.rank == 0)
    scale = torch.full((8,), 3.0, requires_grad=True)
    y = through(dispatcher, x, CHOSEN[:, :1], torch.ones(9, 1), lambda batch: batch.tokens * scale)
    y.sum().backward()
    assert (x.grad == 3).all() if world.rank == 0 else x.grad is None and not x.requires_grad
    with torch.no_grad():
        assert not through(dispatcher, x, CHOSEN, torch.ones(9, 2)).requires_grad


def no_rows(world, group):
    """All rows go to experts of rank 0. The experts of rank 1 get none, and their output is not a function of
    tokens."""
    dispatcher, x = experts.Dispatcher(4, group), numbers(world.rank, 9, 8).requires_grad_()

    def expert(batch):
        assert bool(len(batch.tokens)) == (world.rank == 0)
        return batch.tokens * 3 if len(batch.tokens) else torch.zeros(batch.shape)
    through(dispatcher, x, CHOSEN % 2, torch.ones(9, 2), expert).sum().backward()
    assert (x.grad == 6).all()


def in_place(world, group):
    for settings in {}, {"capacity": 9, "pad": True}:
        x = numbers(world.rank, 9, 8).requires_grad_()
        y = through(experts.Dispatcher(4, group, **settings), x, CHOSEN, torch.ones(9, 2),
                    lambda batch: torch.relu_(batch.tokens) * 3)
        y.mul_(2).sum().backward()
        torch.testing.assert_close(x.grad, (x > 0) * 12.0)


def twice(world, group):
    """Gradients of one backward pass stay as they are in the next one."""
    dispatcher, x, weights = experts.Dispatcher(4, group), numbers(world.rank, 9, 8).requires_grad_(), torch.ones(9, 2)
    batch = dispatcher.dispatch(x, CHOSEN)
    outputs = batch.tokens * 2
    y = dispatcher.combine(outputs, weights, batch)
    found = [torch.autograd.grad(y.sum() * scale, outputs, retain_graph=True)[0] for scale in (1, 5, 7)]
    assert [gradient.unique().tolist() for gradient in found] == [[1], [5], [7]]


def checkpointed(world, group):
    dispatcher, x, weights = experts.Dispatcher(4, group), numbers(world.rank, 9, 8), numbers(2, 9, 2)
    leaves = [leaf.requires_grad_() for leaf in (x, weights, numbers(7, 8, 8))]

    def layer(x, weights):
        return through(dispatcher, x, CHOSEN, weights, lambda batch: torch.tanh(batch.tokens @ leaves[2]))

    def layers(call):
        for leaf in leaves:
            leaf.grad = None
        y = call(call(x))
        y.square().sum().backward()
        return y, [leaf.grad for leaf in leaves]
    expected = layers(lambda x: layer(x, weights))
    for reentrant in False, True:
        torch.testing.assert_close(layers(lambda x: checkpoint(layer, x, weights, use_reentrant=reentrant)), expected)


def side_by_side(world, group):
    one, other = experts.Dispatcher(4, group), experts.Dispatcher(2, group, capacity=50, pad=True)
    x, half = numbers(world.rank, 9, 8).requires_grad_(), torch.full((9, 2), 0.5)
    a, b, c = one.dispatch(x, CHOSEN), other.dispatch(x, CHOSEN[:, :1] % 2), one.dispatch(x * 3, CHOSEN)
    y = [other.combine(b.tokens * 2, half[:, :1], b), one.combine(c.tokens, half, c), one.combine(a.tokens, half, a)]
    torch.testing.assert_close(y, [x, x * 3, x])
    backward = threading.Thread(target=sum(y).sum().backward)
    backward.start()
    backward.join()
    torch.testing.assert_close(x.grad, torch.full((9, 8), 5.0))


@pytest.mark.parametrize("case", [some_ranks, no_rows, in_place, twice, checkpointed, side_by_side])
def test_gradients_are_right_in_any_graph(shared, case):
    shared(2).run(on_both, case)


# ---- memory ----
class Nothing:
    """A library that gives no memory."""

    def tutti_mem_alloc_common(self, *_):
        return 0


class Cycle:
    def __init__(self, extent):
        self.extent, self.itself = extent, self


class Interrupted(list):
    """A list that runs Python's garbage collector after each iteration over it."""

    def __iter__(self):
        yield from super().__iter__()
        gc.collect()


def test_extent_freed_within_take_is_not_joined(monkeypatch):
    """The garbage collector frees an extent in the middle of take(). The pool must not join it with the extent that
    take() has just chosen."""
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: raised.append(what.exc_value))
    monkeypatch.setattr(_pool, "_library", Nothing)
    pool = Pool(0, Hosts([0, 0], 0), 1 << 20)
    pool._free = Interrupted(pool._free)
    for _ in range(3):
        for size in 4096, 8192:
            cycle = Cycle(pool.take())
            cycle.extent.cut(size)
            del cycle
    gc.collect()
    assert not raised and pool.take().size == 1 << 20


def ended(world):
    """Checks that tensors outlive their group, that a group can be made again, and that a destroyed group is
    refused."""
    kept = []
    for turn in range(3):
        group = dist.new_group([0, 1])
        dispatcher, x = experts.Dispatcher(4, group), numbers(turn, 9, 8)
        torch.testing.assert_close(through(dispatcher, x, CHOSEN, torch.ones(9, 2)), x * 4)
        tokens = dispatcher.dispatch(x, CHOSEN).tokens
        kept.append((tokens, tokens.clone()))
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match="group"):
            dispatcher.dispatch(x, CHOSEN)
    for tokens, copy in kept:
        assert torch.equal(tokens, copy)


def test_tensors_outlive_their_group(shared):
    shared(2).run(ended)


def held(world):
    world.kept["tokens"] = tokens = experts.Dispatcher(4).dispatch(numbers(1, 9, 8), CHOSEN).tokens
    world.kept["copy"] = tokens.clone()
    return os.getpid()


def left(world, other):
    """Rank 1 exits. Rank 0 must still have the rows that came from rank 1."""
    if world.rank:
        os._exit(0)
    while os.path.exists(f"/proc/{other}"):
        time.sleep(0.01)
    assert torch.equal(world.kept["tokens"], world.kept["copy"])


def test_rows_outlive_the_rank_that_sent_them(fresh):
    ranks = fresh(2)
    stays, goes = ranks.outcomes(left, ranks.run(held)[1])
    assert not stays.failed, stays.trace
    assert goes.died == 0


def test_experts_work_with_detail_debug_level(fresh):
    ranks = fresh(2, gloo=True, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    ranks.run(on_both, views)
    ranks.run(on_both, checkpointed)
