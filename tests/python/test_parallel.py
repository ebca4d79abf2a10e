"""Tests of torch_tutti.parallel: layers that are divided among ranks train as the whole ones do in one process, with
and without the sequence divided, on tutti and on gloo; whole states; mistakes; and compiled."""

import pickle
from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from test_compile import compiled, compiling  # noqa: F401
from training import same_on_all_ranks
from transformer import Transformer, loss_of, tokens
from zero_training import refused

from torch_tutti import parallel
from torch_tutti.parallel import ColumnLinear, RowLinear, VocabularyEmbedding, cross_entropy

STEPS = 20
# The bias of keys has no influence on a softmax, so its gradient is only rounding. With a large eps, Adam ignores it.
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
              "adam": (torch.optim.Adam, {"lr": 0.003, "eps": 1e-4})}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Divided(Transformer):
    """The transformer of the tests, whose layers are divided in place. tied: its last layer has the embedding's
    weight, with the gradients of both."""

    def __init__(self, group, tied=False, sequence=False, layers=2, **options):
        super().__init__(layers)
        options = {"group": group, "sequence": sequence, **options}
        tie(self, tied)
        self.tokens = VocabularyEmbedding.of(self.tokens, group, sequence=sequence)
        self.output = ColumnLinear.of(self.output, **options)
        tie(self, tied)
        for layer in self.layers:
            divide(layer.attention, ("query", "key", "value"), "output", options)
            divide(layer.feed_forward, ("up",), "down", options)
        if sequence:
            for norm in [n for n in self.modules() if isinstance(n, torch.nn.LayerNorm)]:
                parallel.sum_gradients(norm, group)


def tie(model, tied):
    if tied:
        model.output.weight = model.tokens.weight


def divide(module, columns, row, options):
    for name in columns:
        setattr(module, name, ColumnLinear.of(getattr(module, name), **options))
    setattr(module, row, RowLinear.of(getattr(module, row), **options))


def group_of(world, backend):
    return world.gloo if backend == "gloo" else None


def check_state(ours, judge, **close):
    state, whole = parallel.full_state(ours), judge.state_dict()
    assert list(state) == list(whole)
    for name, value in state.items():
        torch.testing.assert_close(value, whole[name], msg=lambda text: f"{name}: {text}", **(close or CLOSE))


def trains(world, backend, optimizer, sequence, tied=False, **options):
    group, (kind, settings) = group_of(world, backend), OPTIMIZERS[optimizer]
    judge = Transformer()
    tie(judge, tied)
    ours = Divided(group, tied, sequence, **options)
    optimizers = [kind(model.parameters(), **settings) for model in (ours, judge)]
    for turn in range(STEPS):
        x, y = tokens(turn)
        losses = cross_entropy(ours(x), y, group), loss_of(judge(x), y)
        torch.testing.assert_close(*losses, **CLOSE)
        for model, loss, by in zip((ours, judge), losses, optimizers):
            by.zero_grad()
            loss.backward()
            (parallel.clip_grad_norm_ if model is ours else clip)(model, 0.5)
            by.step()
    check_state(ours, judge)
    same_on_all_ranks(world, torch.cat([p.detach().flatten() for n, p in ours.named_parameters() if "norm" in n]))


def clip(model, most):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), most)


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
@pytest.mark.parametrize("backend, optimizer, tied", [("tutti", "sgd", False), ("tutti", "adam", True),
                                                      ("gloo", "sgd", True)])
def test_trains_as_in_one_process(shared, backend, optimizer, sequence, tied):
    shared(2).run(trains, backend, optimizer, sequence, tied)


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_four_ranks_train_as_in_one_process(shared, sequence):
    shared(4).run(trains, "tutti", "sgd", sequence, True)


def test_group_of_one_rank_equals_the_whole_model(shared):
    shared(2).run(alone)


def alone(world):
    group = dist.new_group([world.rank], use_local_synchronization=True)
    ours, judge = Divided(group, sequence=True), Transformer()
    x, y = tokens(1)
    losses = cross_entropy(ours(x), y, group), loss_of(judge(x), y)
    assert torch.equal(ours(x), judge(x))
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for mine, whole in zip(ours.parameters(), judge.parameters()):
        torch.testing.assert_close(mine.grad, whole.grad)
    check_state(ours, judge, rtol=0, atol=0)
    dist.destroy_process_group(group)


# ---- compiled ----
def compiles(world, backend, sequence, whole):
    """Compiles the transformer, or a part of it with each kind of divided layer."""
    ours, judge = ((Divided(None, True, sequence, layers=1), Transformer(layers=1)) if whole else
                   (Ends(None, True, True, sequence), Ends(tied=True)))
    if whole:
        tie(judge, True)

    def step(x, y):
        return cross_entropy(ours(x), y, classes=None if whole else 11)

    fast, graphs = compiled(step, backend)
    for turn in range(2):
        x, y = tokens(turn) if whole else (IDS, IDS.roll(turn + 1, 0))
        equal_steps(ours, judge, fast(x, y), loss_of(judge(x), y))
    assert len(graphs) == 1


@pytest.mark.parametrize("backend, sequence, whole", [("aot_eager", False, True), ("aot_eager", True, True),
                                                      ("inductor", True, False)])
def test_divided_model_compiles_to_one_graph(compiling, backend, sequence, whole):              # noqa: F811
    compiling.run(compiles, backend, sequence, whole, limit_s=240)


# ---- mistakes ----
def mistakes(world):
    refused(ValueError, "out_features of 7 cannot be divided among 2 ranks; the next possible size is 8",
            lambda: ColumnLinear(4, 7))
    refused(ValueError, "in_features of 5 .* is 6", lambda: RowLinear(5, 4))
    refused(ValueError, "a sequence of 3 .* is 4", lambda: RowLinear(4, 4, sequence=True)(torch.ones(2, 3, 2)))
    refused(ValueError, f"got .*3, 5.* on rank {world.rank}; it takes 4 features",
            lambda: ColumnLinear(4, 4)(torch.ones(3, 5)))
    refused(IndexError, f"token 9 on rank {world.rank}; allowed are 0 to 8",
            lambda: VocabularyEmbedding(9, 4)(torch.tensor([1, 9])))
    refused(ValueError, "the target must be integers of the logits' shape",
            lambda: cross_entropy(torch.ones(2, 3), torch.ones(3, dtype=torch.long)))
    target = torch.tensor([1, 6 if world.rank else 2])
    refused(IndexError, "target 6 on rank 1; allowed are 0 to 5" if world.rank else "a target of rank 1 is wrong",
            lambda: cross_entropy(torch.ones(2, 3), target))
    norm = torch.nn.LayerNorm(4)
    parallel.sum_gradients(norm)
    refused(ValueError, "gradients of weight are summed already", lambda: parallel.sum_gradients(norm))
    refused(ValueError, "the module is a divided layer", lambda: parallel.sum_gradients(RowLinear(4, 4)))
    refused(ValueError, "weight of RowLinear is .*3, 3", lambda: parallel.load_full_state(
        RowLinear(4, 4, bias=False), {"weight": torch.ones(3, 3)}))


def test_mistakes_are_refused(shared):
    shared(2).run(mistakes)


def losses(world):
    for settings in ({"reduction": "sum"}, {"label_smoothing": 0.1, "ignore_index": 2}, {"reduction": "none"}):
        whole, y = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 7, 2, 3, 4])
        part, whole = whole.chunk(2, 1)[world.rank].clone().requires_grad_(), whole.requires_grad_()
        pair = cross_entropy(part, y, **settings), F.cross_entropy(whole, y, **settings)
        torch.testing.assert_close(*pair)
        [loss.sum().backward() for loss in pair]
        torch.testing.assert_close(part.grad, whole.grad.chunk(2, 1)[world.rank])


def test_losses_equal_those_of_torch(shared):
    shared(2).run(losses)


def overlapped(world, dtype):
    torch.manual_seed(1)
    layers = [ColumnLinear(8, 12, sequence=True, pieces=pieces, dtype=dtype) for pieces in (0, 1, 3)]
    x = torch.randn(2, 5, 8, dtype=dtype) + world.rank
    found = []
    for layer in layers:
        layer.load_state_dict(layers[0].state_dict())
        y = layer(piece := x.clone().requires_grad_())
        y.square().sum().backward()
        found.append((y, piece.grad, layer.weight.grad))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_overlap_leaves_results_unchanged(shared, dtype):
    shared(2).run(overlapped, dtype)


# ---- options ----
def beside(world, ours, judge, x, y, gradient, rtol=None, atol=None):
    """Compares forward and backward of a divided layer with those of the whole one. x, y, gradient: functions that
    return this rank's part of the whole input, of the output, and of the input's gradient."""
    close = {"rtol": rtol, "atol": atol}
    whole = torch.randn(4, 6, judge.in_features, generator=torch.Generator().manual_seed(3)).requires_grad_()
    mine = x(whole).detach().clone().requires_grad_()
    found, expected = ours(mine), judge(whole)
    torch.testing.assert_close(found, y(expected), **close)
    by = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4)).to(expected.dtype)
    expected.backward(by)
    found.backward(y(by))
    torch.testing.assert_close(mine.grad, gradient(whole.grad), **close)
    for name, parameter in judge.named_parameters():
        torch.testing.assert_close(ours.whole(name, getattr(ours, name).grad), parameter.grad, **close)


def options(world):
    def piece(dim):
        return lambda tensor: tensor.chunk(2, dim)[world.rank]

    def each_third(y):
        return torch.cat([part.chunk(2, -1)[world.rank] for part in y.chunk(3, -1)], -1)

    def same(tensor):
        return tensor

    torch.manual_seed(1)
    up, narrow = torch.nn.Linear(8, 12), torch.nn.Linear(8, 7, bias=False)
    for kind, layer, settings, x, y in (
            (ColumnLinear, up, {"gather_output": True}, same, same),
            (ColumnLinear, up, {"gather_output": True, "parts": 3}, same, same),
            (ColumnLinear, narrow, {"gather_output": True, "pad": True}, same, same),
            (ColumnLinear, up, {"gather_output": True, "sequence": True}, piece(1), same),
            (ColumnLinear, up, {"parts": 3}, same, each_third),
            (ColumnLinear, up, {"parts": 3, "sequence": True, "dim": 0}, piece(0), each_third),
            (ColumnLinear, up, {"sequence": True, "dim": 0, "pieces": 0}, piece(0), piece(-1)),
            (RowLinear, up, {}, piece(-1), same),
            (RowLinear, up, {"sequence": True, "dim": 0}, piece(-1), piece(0)),
            (RowLinear, narrow, {"input_is_parallel": False}, same, same),
            (RowLinear, up, {"input_is_parallel": False, "sequence": True, "dim": 0}, same, piece(0))):
        layer.zero_grad()
        beside(world, kind.of(layer, **settings), layer, x, y, x)
    with torch.autocast("cpu", torch.bfloat16):
        for kind, settings, x, y in ((ColumnLinear, {}, same, piece(-1)), (RowLinear, {}, piece(-1), same),
                                     (ColumnLinear, {"sequence": True}, piece(1), piece(-1)),
                                     (RowLinear, {"sequence": True}, piece(-1), piece(1))):
            up.zero_grad()
            beside(world, kind.of(up, **settings), up, x, y, x, rtol=2e-2, atol=1e-1)
        for layer in ColumnLinear(4, 4, dtype=torch.float64), RowLinear(8, 4, dtype=torch.float64):
            # autocast leaves float64 as it is.
            assert layer(torch.ones(3, 4, dtype=torch.float64)).dtype == torch.float64


def test_layers_with_options_equal_whole_layers(shared):
    shared(2).run(options)


class Ends(torch.nn.Module):
    """A transformer without attention, with a vocabulary of 11 tokens, which does not divide evenly among two ranks."""

    def __init__(self, group=None, divided=False, tied=False, sequence=False):
        super().__init__()
        torch.manual_seed(5)
        self.tokens, self.norm = torch.nn.Embedding(11, 6, padding_idx=7), torch.nn.LayerNorm(6)
        self.up, self.down, self.head = [torch.nn.Linear(*sizes) for sizes in ((6, 8), (8, 6), (6, 11))]
        if divided:
            options = {"group": group, "sequence": sequence, "dim": 0}
            self.tokens = VocabularyEmbedding.of(self.tokens, **options)
            divide(self, ("up",), "down", options)
            self.head = ColumnLinear.of(self.head, pad=True, **options)
        if sequence:
            parallel.sum_gradients(self.norm, group)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


IDS = torch.tensor([[0, 7, 10], [5, 6, 7], [10, 2, 3], [4, 9, 8]])


def equal_steps(ours, judge, *losses):
    """Checks that losses and gradients of both models agree."""
    torch.testing.assert_close(*losses, **CLOSE)
    for model, loss in zip((ours, judge), losses):
        model.zero_grad()
        loss.backward()
    for name, whole in judge.named_parameters():
        at, _, last = name.rpartition(".")
        layer = ours.get_submodule(at)
        found = getattr(layer, last).grad
        found = layer.whole(last, found) if isinstance(layer, parallel._layers.Divided) else found
        torch.testing.assert_close(found, whole.grad, msg=lambda text: f"{name}: {text}", **CLOSE)


def equal_ends(ours, judge, **settings):
    target = IDS.flip(0)
    equal_steps(ours, judge, cross_entropy(ours(IDS), target, classes=11, **settings),
                F.cross_entropy(judge(IDS).flatten(0, 1), target.flatten(), **settings))


def padded(world):
    for tied in False, True:
        for sequence in False, True:
            ours, judge = Ends(None, True, tied, sequence), Ends(tied=tied)
            logits = ours(IDS)
            assert logits.shape[-1] == 6 and torch.isneginf(logits[..., 5]).all() == bool(world.rank)
            for settings in ({}, {"label_smoothing": 0.1, "ignore_index": 3}):
                equal_ends(ours, judge, **settings)
            check_state(ours, judge, rtol=0, atol=0)
            assert not world.rank or not ours.head.weight[5].any()
    refused(IndexError, f"target 11 on rank {world.rank}; allowed are 0 to 10",
            lambda: cross_entropy(ours(IDS), torch.full((4, 3), 11), classes=11))
    torch.testing.assert_close(cross_entropy(ours(IDS), IDS.int(), classes=11),
                               cross_entropy(ours(IDS), IDS, classes=11))


def test_padded_vocabulary_equals_the_whole_one(shared):
    shared(2).run(padded)


# ---- copies ----
def copies(world):
    ours, judge = Ends(None, True, True, True), Ends(tied=True)
    for copy in (deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copy.head.weight is copy.tokens.weight and copy.head.weight is not ours.head.weight
        # Also compares the gradients of the norm, which are summed over ranks.
        equal_ends(copy, judge)
        equal_ends(copy, judge)
        refused(ValueError, "gradients of weight are summed already", lambda: parallel.sum_gradients(copy.norm))
        with torch.no_grad():
            copy.head.weight.mul_(2)
    check_state(ours, judge, rtol=0, atol=0)
    state = {name: value.clone() for name, value in parallel.full_state(ours).items()}
    for parameter in ours.parameters():
        torch.nn.init.zeros_(parameter)
    assert not parallel.load_full_state(ours, state).missing_keys
    check_state(ours, judge, rtol=0, atol=0)
    alone = dist.new_group([world.rank], use_local_synchronization=True)
    layer = ColumnLinear(4, 4, group=alone)
    # full_state returns a copy.
    parallel.full_state(layer)["weight"].zero_()
    assert layer.weight.any()
    dist.destroy_process_group(alone)


def test_copies_and_states_of_divided_layers(shared):
    shared(2).run(copies)


def from_meta(world):
    with torch.device("meta"):
        ours = torch.nn.ModuleList([VocabularyEmbedding(11, 6, 7), torch.nn.LayerNorm(6), ColumnLinear(6, 11, pad=True),
                                    RowLinear(8, 3, bias=False)])
    parallel.sum_gradients(ours[1])
    ours.to_empty(device="cpu")
    layers = torch.nn.Embedding(11, 6, 7), torch.nn.LayerNorm(6), torch.nn.Linear(6, 11), torch.nn.Linear(8, 3, False)
    for group in ours, layers:
        torch.manual_seed(9)
        for layer in group:
            layer.reset_parameters()
    check_state(ours, torch.nn.ModuleList(layers), rtol=0, atol=0)
    x = torch.randn(5, 6) + world.rank
    ours[1](x).sum().backward()
    same_on_all_ranks(world, ours[1].bias.grad)
    assert (ours[1].bias.grad == 10).all()


def test_model_on_meta_gets_the_first_values_of_torch(shared):
    shared(2).run(from_meta)
