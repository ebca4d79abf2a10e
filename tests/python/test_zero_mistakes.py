"""Tests of mistakes with zero.shard, and of ranks that die: each ends in an error with the reason."""
import copy
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from training import same_on_all_ranks
from zero_training import Network, equal, go_back, ids_of, loss_of, refused, trained, values

from torch_tutti import exceptions, zero


# ---- what goes wrong ----
def run_refusals(world):
    model = Network(16)
    adam = torch.optim.AdamW(model.parameters())
    refused(ValueError, "stage 4; it must be 0, 1, 2 or 3", lambda: zero.shard(model, adam, stage=4))
    refused(NotImplementedError, "stage 0 does not compress", lambda: zero.shard(model, adam, stage=0,
                                                                                compression="int8"))
    refused(ValueError, "precision='fp8'; it must be 'bf16', 'fp16' or None",
            lambda: zero.shard(model, adam, precision="fp8"))
    refused(ValueError, "hosts='replicated' with stage 3", lambda: zero.shard(model, adam, hosts="replicated"))
    refused(ValueError, "no tutti backend for CPU tensors .its backend is gloo",
            lambda: zero.shard(model, adam, group=world.gloo))
    refused(ValueError, "not part of the model", lambda: zero.shard(model, adam, units=[nn.Linear(1, 1)]))
    some = torch.optim.AdamW([model.scale])
    refused(ValueError, "is not in the optimizer", lambda: zero.shard(model, some))
    more = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(1))])
    refused(ValueError, "parameters that are not in the model", lambda: zero.shard(model, more))
    short = nn.Embedding(8, 4, max_norm=1.0)
    refused(ValueError, "is an embedding with max_norm",
            lambda: zero.shard(short, torch.optim.AdamW(short.parameters())))
    odd = Network(16)
    odd.scale.data = odd.scale.data.to(torch.complex64)
    refused(ValueError, "parameter scale is torch.complex64; it must be one of torch.float32, torch.bfloat16, "
            "torch.float16, torch.float64", lambda: zero.shard(odd, torch.optim.AdamW(odd.parameters())))
    half = Network(16).half()
    refused(ValueError, "gradients of type float16 .unit model. cannot be compressed; use float32 or bfloat16",
            lambda: zero.shard(half, torch.optim.AdamW(half.parameters()), stage=2, compression="int8"))
    frozen = Network(16).requires_grad_(False)
    refused(ValueError, "no parameter with requires_grad",
            lambda: zero.shard(frozen, torch.optim.AdamW(frozen.parameters())))


def test_what_is_refused(shared):
    shared(2).run(run_refusals)


def run_ahead(world):
    """ahead=True is not ignored in silence where it has no effect."""
    def shard(kind=None, **options):
        model = Network(16)
        zero.shard(model, kind and kind(model.parameters(), lr=0.01), ahead=True, **options)
    for options, reason in (({"kind": torch.optim.AdamW, "hosts": "sharded"}, "with sharded parameters"),
                            ({"kind": torch.optim.RMSprop}, "with RMSprop, which runs in Python"),
                            ({"stage": 2}, "without an optimizer"), ({"stage": 0}, "without an optimizer")):
        with pytest.warns(UserWarning, match=f"ahead=True has no effect {reason}") as found:
            shard(**options)
        assert [each.filename for each in found] == [__file__], found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shard(torch.optim.AdamW, stage=2)


def test_ahead_without_effect_warns(shared):
    shared(2).run(run_ahead)


def run_other_model(world):
    model = Network(16 + 16 * world.rank)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(Exception, match="another model than another rank") as raised:
        zero.shard(model, optimizer)
    assert type(raised.value).__name__ == "MismatchError"
    dist.barrier()


def test_ranks_with_other_models(shared):
    shared(2).run(run_other_model)


def run_changed(world):
    model, optimizer = trained(world, "sgd", 3)
    with torch.no_grad():
        model.scale.add_(1)
    refused(RuntimeError, "parameter scale was changed in place", optimizer.step)
    with optimizer.edit(), torch.no_grad():
        if world.rank == 0:
            model.scale.fill_(3)
    assert (model.scale == 3).all()
    go_back(model, optimizer, 9, world.rank)
    optimizer.step()
    same_on_all_ranks(world, values(model))
    model.scale.data = model.scale.data + 1
    refused(RuntimeError, "scale is not in the memory where zero.shard put it", optimizer.step)
    refused(ValueError, "groups of .2. parameters",
            lambda: optimizer.load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}))


def test_parameters_that_are_changed_by_others(shared):
    shared(2).run(run_changed)


def run_replaced(world):
    """Changes are refused after which a model would silently not be trained: a second shard, new or replaced
    parameters, gradients from elsewhere, another form of the optimizer."""
    model, optimizer = trained(world, "sgd", 3)
    refused(ValueError, "is already sharded", lambda: zero.shard(model, torch.optim.SGD(model.parameters(), lr=1)))
    model.extra = nn.Parameter(torch.ones(3))
    refused(RuntimeError, "extra was not trained when the model was sharded", optimizer.step)
    del model.extra
    model.scale.grad = torch.ones_like(model.scale)
    refused(RuntimeError, "scale has a gradient in .grad that does not come from a backward pass", optimizer.step)
    model.scale.grad = None
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    refused(RuntimeError, "another parameter", optimizer.step)
    model, optimizer = trained(world, "sgd", 2)
    optimizer.param_groups[0]["momentum"] = 0.9
    refused(ValueError, "another form of SGD .momentum. than when the model was sharded", optimizer.step)
    dist.barrier()


def test_what_would_not_train(shared):
    shared(2).run(run_replaced)


def run_not_a_number(world):
    """A NaN in the gradients of one rank is an error of clip_grad_norm_ on all ranks. zero_grad then drops the
    gradients of all, and training goes on."""
    model, optimizer = trained(world, "sgd", 3)
    before = values(model)
    (loss_of(model(ids_of(7, world.rank))) * (float("nan") if world.rank == 1 else 1.0)).backward()
    refused(RuntimeError, "norm of the gradients is nan", lambda: optimizer.clip_grad_norm_(1, error_if_nonfinite=True))
    optimizer.zero_grad()
    equal(world, values(model), before)
    go_back(model, optimizer, 8, world.rank)
    optimizer.step()
    assert values(model).isfinite().all() and not torch.equal(values(model), before)
    same_on_all_ranks(world, values(model))


def test_gradients_that_are_no_numbers(shared):
    shared(2).run(run_not_a_number)


def fail_forward(world, model):
    """Rank 1 has an error in its forward pass, and the other ranks have gradients."""
    if world.rank == 1:
        hook = model.blocks[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids_of(7, world.rank))
        hook.remove()
    else:
        loss_of(model(ids_of(7, world.rank))).backward()


def run_failed_pass(world, stage):
    """All ranks drop the gradients of the pass. A rank without any takes part if all have averaged them before. If they
    have not, the error names that call."""
    model, optimizer = trained(world, "sgd", stage)
    before = values(model)
    fail_forward(world, model)
    optimizer.gradient_norms()
    optimizer.zero_grad()
    equal(world, values(model), before)
    go_back(model, optimizer, 8, world.rank)
    optimizer.step()
    other, theirs = trained(world, "sgd", stage)
    go_back(other, theirs, 8, world.rank)
    theirs.step()
    equal(world, values(model), values(other))
    fail_forward(world, model)
    with pytest.raises((exceptions.MismatchError, exceptions.AbortedError)) as raised:
        optimizer.zero_grad()
        go_back(model, optimizer, 8, world.rank)
        optimizer.step()
    return str(raised.value)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_pass_that_fails_on_one_rank(shared, stage):
    texts = shared(2).run(run_failed_pass, stage)
    assert any("a pass of some ranks only, call optimizer.gradient_norms() on all" in text for text in texts), texts


def run_stale_graph(world):
    """A graph kept over a step has other weights than it was made with: torch notices."""
    model, optimizer = trained(world, "sgd", 3)
    kept = loss_of(model(ids_of(7, world.rank)))
    go_back(model, optimizer, 8, world.rank)
    optimizer.step()
    refused(RuntimeError, "modified by an inplace operation", kept.backward)
    dist.barrier()


def test_a_graph_from_before_the_step(shared):
    shared(2).run(run_stale_graph)


def run_until_one_dies(world):
    model, optimizer = trained(world, "adamw", 3)
    if world.rank == 1:
        import os
        import signal
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception, match="rank 1") as raised:
        go_back(model, optimizer, 7, world.rank)
        optimizer.step()
    return type(raised.value).__name__


def test_a_rank_that_dies(fresh):
    outcomes = fresh(2).outcomes(run_until_one_dies)
    assert outcomes[0].value == "PeerError" and outcomes[1].died is not None, outcomes
