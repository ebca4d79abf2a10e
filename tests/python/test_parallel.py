"""torch_tutti.parallel: layers that are divided among ranks train as the whole ones do in one process, with and without
the sequence divided, on tutti and on gloo; whole states; mistakes; and compiled."""

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
# The keys' bias has no influence on a softmax: its gradient is rounding, which Adam is not to take for one.
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
              "adam": (torch.optim.Adam, {"lr": 0.003, "eps": 1e-4})}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Divided(Transformer):
    """The transformer of the tests, of which the layers are divided in place. tied: its last layer has the embedding's
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
def test_four_ranks(shared, sequence):
    shared(4).run(trains, "tutti", "sgd", sequence, True)


def test_group_of_one_rank(shared):
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
def compiles(world, backend, sequence):
    ours, judge = Divided(None, True, sequence, layers=1), Transformer(layers=1)
    tie(judge, True)

    def step(x, y):
        return cross_entropy(ours(x), y)

    fast, graphs = compiled(step, backend)
    for turn in range(2):
        x, y = tokens(turn)
        losses = fast(x, y), loss_of(judge(x), y)
        torch.testing.assert_close(*losses, **CLOSE)
        for model, loss in zip((ours, judge), losses):
            model.zero_grad()
            loss.backward()
        gradients = {n: p.grad for n, p in ours.named_parameters()}
        for name, layer in ours.named_modules():
            if isinstance(layer, parallel._layers.Divided):
                for of in layer.shapes():
                    gradients[f"{name}.{of}"] = layer.whole(of, getattr(layer, of).grad)
        for name, whole in judge.named_parameters():
            torch.testing.assert_close(gradients[name], whole.grad, msg=lambda t: f"{name}: {t}", **CLOSE)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend, sequence", [("aot_eager", False), ("aot_eager", True), ("inductor", True)])
def test_compiles_whole(compiling, backend, sequence):                                          # noqa: F811
    compiling.run(compiles, backend, sequence, limit_s=240)


# ---- mistakes ----
def mistakes(world):
    refused(ValueError, "out_features of 7 cannot be divided among 2 ranks; the next size that can is 8",
            lambda: ColumnLinear(4, 7))
    refused(ValueError, "in_features of 5 .* is 6", lambda: RowLinear(5, 4))
    refused(ValueError, "a sequence of 3 .* is 4", lambda: RowLinear(4, 4, sequence=True)(torch.ones(2, 3, 2)))
    refused(ValueError, f"got .*3, 5.* on rank {world.rank}; it takes 4 features",
            lambda: ColumnLinear(4, 4)(torch.ones(3, 5)))
    refused(IndexError, f"token 9 on rank {world.rank}; there are 0 to 8",
            lambda: VocabularyEmbedding(9, 4)(torch.tensor([1, 9])))
    refused(ValueError, "the target has the logits' shape",
            lambda: cross_entropy(torch.ones(2, 3), torch.ones(3, dtype=torch.long)))
    target = torch.tensor([1, 6 if world.rank else 2])
    refused(IndexError, "target 6 on rank 1; there are 0 to 5" if world.rank else "a target of rank 1 is wrong",
            lambda: cross_entropy(torch.ones(2, 3), target))
    norm = torch.nn.LayerNorm(4)
    parallel.sum_gradients(norm)
    refused(ValueError, "gradients of weight are summed already", lambda: parallel.sum_gradients(norm))
    refused(ValueError, "the module is a divided layer", lambda: parallel.sum_gradients(RowLinear(4, 4)))
    refused(ValueError, "weight of RowLinear is .*3, 3", lambda: parallel.load_full_state(
        RowLinear(4, 4, bias=False), {"weight": torch.ones(3, 3)}))


def test_mistakes(shared):
    shared(2).run(mistakes)


def losses(world):
    for settings in ({"reduction": "sum"}, {"label_smoothing": 0.1, "ignore_index": 2}, {"reduction": "none"}):
        whole, y = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 7, 2, 3, 4])
        part, whole = whole.chunk(2, 1)[world.rank].clone().requires_grad_(), whole.requires_grad_()
        pair = cross_entropy(part, y, **settings), F.cross_entropy(whole, y, **settings)
        torch.testing.assert_close(*pair)
        [loss.sum().backward() for loss in pair]
        torch.testing.assert_close(part.grad, whole.grad.chunk(2, 1)[world.rank])


def test_losses(shared):
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
def test_overlap_changes_nothing(shared, dtype):
    shared(2).run(overlapped, dtype)
