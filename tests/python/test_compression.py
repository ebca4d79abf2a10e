"""Tests of compressed gradients, in DistributedDataParallel and in zero.shard: all ranks get the same
gradients, which together with the residuals add up to the given ones, whatever a message leaves out."""
import contextlib
import copy
import gc
import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from program_start import run_torchrun, succeeded
from torch.nn.parallel import DistributedDataParallel
from training import flat, same_on_all_ranks
from zero_training import Network, ids_of, loss_of, refused

from torch_tutti import compression, zero
from torch_tutti.compression import Compression

STEPS = 5
FORMS = [Compression("fp16"), Compression("bf16"), Compression("int8"), Compression("int4"),
         Compression("int8", stochastic=True, seed=3), Compression("topk", 0.02), Compression("randomk", 0.1),
         Compression("threshold", 0.5, threshold=0.3)]


class Part(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, 1))

    def forward(self, gradient):
        return (self.weight.flatten() * gradient).sum()


class Given(nn.Module):
    """A model whose gradient is the tensor that it is called with, whatever its parameters are. These begin as zeros.
    used: how many of its parts get a gradient."""

    def __init__(self):
        super().__init__()
        self.counts = (5000, 7, 3000, 1100)
        self.parts = nn.ModuleList(map(Part, self.counts))

    def forward(self, gradient, used=4):
        return sum(part(given) for part, given in list(zip(self.parts, gradient.split(self.counts)))[:used])


def gradient_of(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(9107, generator=generator) * torch.rand(9107, generator=generator).pow(4)


def given(world, steps):
    """Returns the sum over the steps of the gradient's average over all ranks."""
    return sum(gradient_of(step, rank).double() for step in steps for rank in range(world.size)) / world.size


def adds_up(world, steps, parameters, lost):
    """Checks that the gradients which arrived and the residuals add up to the given gradients. The learning rate is 1,
    so the parameters have fallen by the sum of the gradients that arrived."""
    values, kept = flat(parameters), flat(lost)
    torch.testing.assert_close(kept - values, given(world, steps), rtol=1e-4, atol=1e-4)
    same_on_all_ranks(world, values)
    same_on_all_ranks(world, kept)


# ---- DistributedDataParallel ----
def ddp(how, **options):
    """Returns a model with small buckets, its compressor and its optimizer. The first step is not compressed, because
    torch rebuilds the buckets after it."""
    model = DistributedDataParallel(Given(), bucket_cap_mb=0.01, **options)
    return model, compression.compress(model, how), torch.optim.SGD(model.parameters(), lr=1.0)


def train(world, model, optimizer, steps, used=4):
    for step in steps:
        optimizer.zero_grad()
        model(gradient_of(step, world.rank), used).backward()
        optimizer.step()


def run_hook(world, how):
    model, compressor, optimizer = ddp(how)
    train(world, model, optimizer, range(STEPS))
    adds_up(world, range(STEPS), model.parameters(), compressor.state_dict()["lost"].values())
    report = compressor.report()
    assert report["calls"] > STEPS and report["array_bytes"] == (STEPS - 1) * 4 * 9107 and report["seconds"] > 0
    assert (report["sent_bytes"] > 0) == (world.size > 1)


@pytest.mark.parametrize("how", FORMS, ids=lambda how: how.form + how.stochastic * "-stochastic")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_hook_loses_nothing(shared, size, how):
    shared(size).run(run_hook, how)


def run_whole(world):
    """Compression that keeps all elements gives the average."""
    models = [ddp(Compression("topk", 1.0))[0], DistributedDataParallel(Given())]
    for model in models:
        for step in range(2):
            model.zero_grad()
            model(gradient_of(step, world.rank)).backward()
    mine, theirs = (flat(p.grad for p in model.parameters()) for model in models)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [2, 3])
def test_compression_that_keeps_all_elements_averages(shared, size):
    shared(size).run(run_whole)


def run_resumed(world, how):
    """A run that is resumed, here with the same ranks, adds the saved residuals to its gradients and goes on with the
    random choices. A state that does not fit is refused."""
    model, compressor, optimizer = ddp(how)
    train(world, model, optimizer, range(3))
    kept = compressor.state_dict()
    other, resumed, follows = ddp(how)
    other.module.load_state_dict(model.module.state_dict())
    resumed.load_state_dict(kept)
    for name, value in resumed.state_dict()["lost"].items():
        torch.testing.assert_close(value, kept["lost"][name])
    train(world, other, follows, range(3, 7))
    assert resumed.state_dict()["turn"] >= kept["turn"] > 0
    adds_up(world, range(7), other.parameters(), resumed.state_dict()["lost"].values())
    wrong = {**kept, "lost": {"parts.0.weight": torch.zeros(3)}}
    refused(ValueError, "parts.0.weight of shape .3,., the model of .5000, 1.", lambda: resumed.load_state_dict(wrong))
    wrong["lost"] = {"head": torch.zeros(3)}
    refused(ValueError, "has none of that name", lambda: resumed.load_state_dict(wrong))


@pytest.mark.parametrize("form", ["int4", "topk", "randomk"])
def test_resumed_run_has_the_saved_residuals(shared, form):
    shared(2).run(run_resumed, Compression(form, 0.1, seed=5))


def run_alike(world):
    """Equal seeds give equal bits, also without feedback; another seed gives others."""
    runs = []
    for seed in (1, 1, 2):
        model, compressor, optimizer = ddp(Compression("int4", feedback=False, stochastic=True, seed=seed))
        train(world, model, optimizer, range(3))
        runs.append(flat(model.parameters()))
        assert compressor.state_dict()["lost"] == {}
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_equal_seeds_give_equal_bits(shared):
    shared(2).run(run_alike)


def learns(world, model, optimizer, steps, passes=1):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for turn in range(passes):
            with contextlib.nullcontext() if turn == passes - 1 else model.no_sync():
                loss = loss_of(model(ids_of(turn, world.rank)))
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0], losses
    same_on_all_ranks(world, flat(model.parameters()))


def run_learning(world, how):
    """A real model, with weights that are used twice, gradient accumulation and bfloat16 gradients too."""
    for dtype in (torch.float32, torch.bfloat16):
        model = DistributedDataParallel(Network(16).to(dtype))
        compression.compress(model, how)
        learns(world, model, torch.optim.SGD(model.parameters(), lr=0.05), 8, passes=2)


@pytest.mark.parametrize("form", ["int8", "topk"])
def test_models_learn(shared, form):
    shared(2).run(run_learning, Compression(form, 0.1))


def run_momentum(world):
    """One rank with one bucket agrees with the formulas of Deep Gradient Compression. An element that is sent loses its
    momentum."""
    model = DistributedDataParallel(Given())
    compressor = compression.compress(model, Compression("topk", 0.02, momentum=0.9))
    lost, momentum, kept = torch.zeros(9107), torch.zeros(9107), 20 * 9107 // 1024
    # The gradients of the first step are not compressed.
    model(gradient_of(0, 0)).backward()
    for step in range(1, STEPS):
        model.zero_grad()
        model(gradient_of(step, 0)).backward()
        momentum = 0.9 * momentum + gradient_of(step, 0)
        lost = lost + momentum
        came = flat(p.grad for p in model.parameters())
        chosen = came != 0
        least = lost.abs().topk(kept).values[-1]
        assert chosen.sum() == kept and lost[chosen].abs().min() > 0.999 * least
        torch.testing.assert_close(came[chosen], lost[chosen].double(), rtol=1e-6, atol=1e-6)
        lost[chosen] = momentum[chosen] = 0
    torch.testing.assert_close(flat(compressor.state_dict()["lost"].values()), lost.double(), rtol=1e-5, atol=1e-5)


def test_momentum_follows_deep_gradient_compression(shared):
    shared(1).run(run_momentum)


def run_momentum_learns(world, stage):
    """A model learns with the momentum of Compression in place of the optimizer's, also with zero.shard (if stage is
    not 0)."""
    how = Compression("topk", 0.1, momentum=0.9)
    model = Network(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    if stage:
        model, optimizer = zero.shard(model, optimizer, stage=stage, compression=how)
    else:
        model = DistributedDataParallel(model)
        compression.compress(model, how)
    learns(world, model, optimizer, 12)


@pytest.mark.parametrize("stage", [0, 2])
def test_models_learn_with_momentum(shared, stage):
    shared(4).run(run_momentum_learns, stage)


# ---- zero.shard ----
def shard(how, stage, hosts=None):
    model = Given()
    return zero.shard(model, torch.optim.SGD(model.parameters(), lr=1.0), stage=stage, hosts=hosts, compression=how)


def lost_of(optimizer):
    return optimizer.state_dict()["lost"].values()


def run_shard(world, how, stage, hosts):
    model, optimizer = shard(how, stage, hosts)
    train(world, model, optimizer, range(STEPS))
    with optimizer.whole():
        adds_up(world, range(STEPS), model.parameters(), lost_of(optimizer))
    assert (optimizer.report()["packed_bytes"] > 0) == (world.size > 1)


@pytest.mark.parametrize("how", FORMS, ids=lambda how: how.form + how.stochastic * "-stochastic")
@pytest.mark.parametrize("size, stage, hosts", [(2, 1, None), (4, 2, None), (4, 3, None), (2, 3, "sharded")])
@pytest.mark.filterwarnings("ignore:zero.shard. parameters are sharded")
def test_shard_loses_nothing(shared, size, how, stage, hosts):
    shared(size).run(run_shard, how, stage, hosts)


def run_moved(world):
    """The residuals of one stage are loaded at another stage. Without compression they are left out, and a residual of
    another shape is refused."""
    how = Compression("topk", 0.02)
    model, optimizer = shard(how, 2)
    train(world, model, optimizer, range(3))
    state, values = optimizer.state_dict(), model.state_dict()
    other, follows = shard(how, 3)
    other.load_state_dict(values)
    follows.load_state_dict(state)
    train(world, other, follows, range(3, STEPS))
    with follows.whole():
        adds_up(world, range(STEPS), other.parameters(), lost_of(follows))
    plain, optimizer = shard(None, 2)
    optimizer.load_state_dict(state)
    assert "lost" not in optimizer.state_dict()
    theirs = torch.optim.SGD(Given().parameters(), lr=1.0)
    theirs.load_state_dict(state)
    state["lost"]["parts.1.weight"] = torch.zeros(3)
    refused(ValueError,
            "the residual of parameter parts.1.weight has the shape .3,. in the state, but should have .7, 1.",
            lambda: follows.load_state_dict(state))


def test_state_moves_between_stages(shared):
    shared(2).run(run_moved)


# ---- unused parameters, dropped steps, copies ----
def run_unused(world, how, stage):
    """Checks that a parameter keeps its residual in steps in which no rank has a gradient for it."""
    if stage:
        model, optimizer = shard(how, stage)
    else:
        model, compressor, optimizer = ddp(how, find_unused_parameters=True)
    train(world, model, optimizer, range(3))
    train(world, model, optimizer, range(3, 6), used=2)
    # With sharded parameters, all ranks must use the same units.
    alike = stage == 3 and optimizer.report()["hosts"] == "sharded"
    least = 4 if alike else 3
    train(world, model, optimizer, range(6, 8), used=4 if world.rank else least)
    lost = lost_of(optimizer) if stage else compressor.state_dict()["lost"].values()
    expected = torch.zeros(9107, dtype=torch.float64)
    for step in range(8):
        for rank in range(world.size):
            used = 2 if 3 <= step < 6 else 4 if step < 3 or rank else least
            expected[:sum((5000, 7, 3000, 1100)[:used])] += gradient_of(step, rank)[:sum((5000, 7, 3000, 1100)[:used])]
    with optimizer.whole() if stage else contextlib.nullcontext():
        values, kept = flat(model.parameters()), flat(lost)
    torch.testing.assert_close(kept - values, expected / world.size, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["topk", "int4"])
@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.filterwarnings("ignore:zero.shard. parameters are sharded")
def test_parameters_without_gradients_keep_residuals(shared, form, stage):
    shared(4).run(run_unused, Compression(form, 0.02), stage)


def run_dropped(world, form):
    """Checks that dropping a step also drops the residuals, so that nothing of its gradients arrives later."""
    model, optimizer = shard(Compression(form, 0.05), 2)
    train(world, model, optimizer, range(2))
    before = flat(model.parameters())
    bad = gradient_of(9, world.rank) * 1000
    bad[::3] = float("nan")
    model(bad).backward()
    refused(RuntimeError, "cannot be clipped", lambda: optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True))
    optimizer.zero_grad()
    assert not any(value.any() for value in lost_of(optimizer))
    train(world, model, optimizer, range(2, STEPS))
    torch.testing.assert_close(flat(lost_of(optimizer)) - flat(model.parameters()) + before,
                               given(world, range(2, STEPS)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["int8", "topk", "randomk"])
def test_dropped_step_drops_its_residuals(shared, form):
    shared(2).run(run_dropped, form)


def run_copied(world):
    """A copy of the model averages without the hook; a frozen parameter keeps what it has lost."""
    model, compressor, optimizer = ddp(Compression("topk", 0.02))
    train(world, model, optimizer, range(3))
    other = copy.deepcopy(model)
    other.zero_grad()
    other(gradient_of(5, world.rank)).backward()
    torch.testing.assert_close(flat(p.grad for p in other.parameters()), given(world, [5]), rtol=1e-5, atol=1e-6)
    model.module.parts[0].weight.requires_grad_(False)
    assert compressor.state_dict()["lost"]["parts.0.weight"].any()


def test_copy_is_not_compressed_and_frozen_parameter_keeps_its_residual(shared):
    shared(2).run(run_copied)


def run_loaded_momentum(world):
    model, optimizer = shard(Compression("topk", 0.02, momentum=0.9), 2)
    fresh = optimizer.state_dict()
    train(world, model, optimizer, range(3))
    optimizer.load_state_dict(fresh)
    before = flat(model.parameters())
    train(world, model, optimizer, [7])
    torch.testing.assert_close(flat(lost_of(optimizer)) - flat(model.parameters()) + before, given(world, [7]),
                               rtol=1e-4, atol=1e-4)


def test_loading_a_state_resets_momentum(shared):
    shared(2).run(run_loaded_momentum)


def run_deleted(world):
    before = set(threading.enumerate())
    model, compressor, optimizer = ddp("int8")
    train(world, model, optimizer, range(2))
    thread, = (thread for thread in set(threading.enumerate()) - before if thread.name == "tutti compression")
    del model, compressor, optimizer
    gc.collect()
    thread.join()


def test_the_thread_of_a_deleted_compressor_ends(shared):
    shared(2).run(run_deleted)


LEAVES = """
import os, torch, torch.distributed as dist, torch_tutti
dist.init_process_group("tutti")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
torch_tutti.compression.compress(model, "int8")
for _ in range(4):
    model(torch.ones(2, 300)).sum().backward()
"""


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_program_may_end_without_cleanup(tmp_path, debug):
    """Python ends its threads when it exits. A thread that is ended within a call into torch would abort the
    process."""
    program = tmp_path / "leaves.py"
    program.write_text(LEAVES)
    succeeded(run_torchrun(2, program, TORCH_DISTRIBUTED_DEBUG=debug, TUTTI_HOSTS=""))


# ---- errors ----
def test_invalid_settings_are_refused():
    refused(ValueError, "compression 'int7': the forms are fp16, bf16, int8, int4, topk, randomk",
            lambda: Compression("int7"))
    refused(ValueError, r"share=0; it must be in \(0, 1\]", lambda: Compression("topk", 0))
    refused(ValueError, "seed=-1; it must be a 64-bit integer", lambda: Compression("int8", seed=-1))
    for how in ({"form": "int8", "momentum": 0.9}, {"form": "topk", "momentum": 1},
                {"form": "topk", "momentum": 0.9, "feedback": False}):
        refused(ValueError, "momentum=.* needs feedback and one of topk, randomk and threshold",
                lambda: Compression(**how))
    for how in ({"form": "threshold"}, {"form": "topk", "threshold": 0.1}, {"form": "threshold", "threshold": -1.0}):
        refused(ValueError, "it must be above 0, and needs form=\"threshold\"", lambda: Compression(**how))
    refused(TypeError, "takes a DistributedDataParallel, not Linear; zero.shard has compression=",
            lambda: compression.compress(nn.Linear(1, 1), "int8"))


def run_refusals(world):
    refused(ValueError, "the group of the model does not use tutti",
            lambda: compression.compress(DistributedDataParallel(Given(), process_group=world.gloo), "int8"))
    refused(TypeError, "compression: 8; it must be a name or a Compression",
            lambda: compression.compress(DistributedDataParallel(Given()), 8))
    wide = DistributedDataParallel(nn.Linear(3, 3).double())
    compression.compress(wide, "int8")
    refused(Exception, "gradients are torch.float64 on cpu; they must be float32 or bfloat16",
            lambda: wide(torch.ones(1, 3).double()).sum().backward())
    model = DistributedDataParallel(Given())
    with pytest.raises(Exception, match="uses another compression of gradients than another rank") as raised:
        compression.compress(model, Compression("int8", seed=world.rank))
    assert type(raised.value).__name__ == "MismatchError"
    with pytest.raises(Exception, match="the types of sums and the compression be the same") as raised:
        shard("int8" if world.rank else "int4", 2)
    assert type(raised.value).__name__ == "MismatchError"
    refused(ValueError, "compression 'int7'", lambda: shard("int7", 2))
    dist.barrier()


def test_invalid_use_is_refused(shared):
    shared(2).run(run_refusals)


def run_unsettled(world):
    model, optimizer = shard("int8", 2)
    model(gradient_of(0, world.rank)).backward()
    refused(ValueError, "the residual of compression can be read and written only between steps", optimizer.state_dict)
    optimizer.step()
    assert len(lost_of(optimizer)) == 4


def test_state_within_a_step_is_refused(shared):
    shared(2).run(run_unsettled)


def run_bad_numbers(world, form):
    """A NaN in the gradient of one rank reaches all ranks, and leaves no residual that is not finite."""
    model, compressor, _ = ddp(form)
    gradient = gradient_of(0, world.rank)
    gradient[4000] = float("nan") if world.rank == 0 else 1
    for _ in range(2):
        model.zero_grad()
        model(gradient).backward()
    grad = model.module.parts[0].weight.grad.flatten()
    assert grad[4000].isnan() and grad[:3000].isfinite().all()
    assert all(value.isfinite().all() for value in compressor.state_dict()["lost"].values())


@pytest.mark.parametrize("form", ["fp16", "bf16", "int8", "int4", "topk"])
def test_nan_reaches_all_ranks_and_no_residual(shared, form):
    shared(2).run(run_bad_numbers, form)


def run_death(world):
    model, _, optimizer = ddp("int8")
    train(world, model, optimizer, range(2))
    if world.rank == 1:
        os.kill(os.getpid(), 9)
    try:
        train(world, model, optimizer, range(2, 5))
    except Exception as error:
        return type(error).__name__, str(error)


def test_death_of_a_rank_is_an_error(fresh):
    outcomes = fresh(2).outcomes(run_death)
    assert outcomes[1].died is not None and "rank 1" in outcomes[0].value[1], outcomes
