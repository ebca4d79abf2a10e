"""FullyShardedDataParallel (FSDP1): the same training on tutti and on gloo must give the same parameters.

For tensors in CPU memory it needs `device_id=torch.device("cpu")`: without it torch 2.13 refuses if there is no
accelerator (distributed/fsdp/_init_utils.py:389). With it, these parts of torch fail with any backend:
- cpu_offload, which pins memory (_flat_param.py:1260);
- sync_module_states, which demands a GPU (_init_utils.py:1171-1181);
- hooks that compress, which record a stream (distributed/algorithms/_comm_hooks/default_hooks.py:91).
"""
import copy
import functools
from dataclasses import dataclass, field
from typing import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (BackwardPrefetch, FullStateDictConfig, FullyShardedDataParallel, MixedPrecision,
                                    ShardingStrategy, StateDictType)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from training import backward, batch, flat, in_one_process, loss_of, network, same_on_all_ranks, stochastic_descent

STEPS = 3
BY_LAYER = functools.partial(size_based_auto_wrap_policy, min_num_params=100)


@dataclass
class Case:
    """One training. batches: for each step; all but the last run without communication. clip: the largest norm of the
    gradients. hook: the name of a function of default_hooks."""
    options: dict = field(default_factory=dict)
    size: int = 2
    batches: int = 1
    clip: float | None = None
    hook: Callable | None = None


def precision(**types):
    return {"mixed_precision": MixedPrecision(**types)}


def strategy(name):
    return {"sharding_strategy": ShardingStrategy[name]}


CASES = {
    "full": Case(strategy("FULL_SHARD")),
    "gradients and states": Case(strategy("SHARD_GRAD_OP")),
    "nothing": Case(strategy("NO_SHARD")),
    "replicas": Case(strategy("HYBRID_SHARD"), size=4),
    "replicas of gradients and states": Case(strategy("_HYBRID_SHARD_ZERO2"), size=4),
    "four ranks": Case(strategy("FULL_SHARD"), size=4),
    "flat parameters only": Case({"use_orig_params": False}),
    "brief parameters": Case(precision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
    "brief reduction": Case(precision(reduce_dtype=torch.bfloat16)),
    "half": Case(precision(param_dtype=torch.float16, reduce_dtype=torch.float16)),
    "nothing, brief": Case(strategy("NO_SHARD") | precision(param_dtype=torch.bfloat16)),
    "accumulation": Case(batches=3),
    "accumulation in shards": Case(strategy("SHARD_GRAD_OP"), batches=2),
    "clipped": Case(clip=0.05),
    "prefetched late": Case({"backward_prefetch": BackwardPrefetch.BACKWARD_POST}),
    "prefetched in forward": Case({"forward_prefetch": True, "backward_prefetch": None, "limit_all_gathers": False}),
    "hook": Case(strategy("NO_SHARD"), hook="allreduce_hook"),
    "hook of shards": Case(hook="reduce_scatter_hook"),
}


def wrapped(model, options, group):
    return FullyShardedDataParallel(model, process_group=group, auto_wrap_policy=BY_LAYER,
                                    device_id=torch.device("cpu"), **{"use_orig_params": True, **options})


def group_of(world, backend, case):
    """Returns the default group of that backend, or the pair of groups that replicas need, which is made once and
    kept."""
    default = world.gloo if backend == "gloo" else dist.group.WORLD
    if "HYBRID" not in str(case.options.get("sharding_strategy")):
        return default
    if ("pairs", backend) not in world.kept:
        within, _ = dist.new_subgroups(2, backend=backend)
        across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]], backend=backend)
        world.kept["pairs", backend] = (within, across)
    return world.kept["pairs", backend]


def train_case(world, case, backend):
    from torch.distributed.algorithms._comm_hooks import default_hooks
    group = group_of(world, backend, case)
    model = wrapped(network(), case.options, group)
    if case.hook:
        model.register_comm_hook(default_hooks.DefaultState(group), getattr(default_hooks, case.hook))
    optimizer = stochastic_descent(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step, world.rank, case.batches)
        if case.clip:
            model.clip_grad_norm_(case.clip)
        optimizer.step()
    return whole(model)


def whole(model):
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        return flat(model.parameters())


def run_case(world, name):
    case = CASES[name]
    mine, judge = (train_case(world, case, backend) for backend in ("tutti", "gloo"))
    assert mine.isfinite().all()
    torch.testing.assert_close(mine, judge, rtol=1e-5, atol=1e-6)
    same_on_all_ranks(world, mine)
    return torch.equal(mine, judge)


@pytest.mark.parametrize("name", CASES)
def test_trains_as_with_gloo(shared, name):
    same_bits = shared(CASES[name].size).run(run_case, name)
    assert CASES[name].size > 2 or all(same_bits), "close, but not the same bits"


def run_against_one_process(world):
    torch.testing.assert_close(train_case(world, Case(), "tutti"), in_one_process(world.size, STEPS))


@pytest.mark.parametrize("size", [2, 3])
def test_trains_as_one_process_with_all_batches(shared, size):
    shared(size).run(run_against_one_process)


# ---- states ----
KINDS = {
    "full": (StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)),
    "sharded": (StateDictType.SHARDED_STATE_DICT, None),
    "local": (StateDictType.LOCAL_STATE_DICT, None),
}


def run_state(world, kind):
    """Loads the state of a model into a new one. With sharded states, also loads that of the optimizer, and trains both
    further."""
    model, other = (wrapped(network(seed), {"use_orig_params": kind != "local"}, None) for seed in (7, 8))
    optimizer, other_optimizer = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, other))
    advance(world, model, optimizer, range(STEPS))
    trained = whole(model)
    with FullyShardedDataParallel.state_dict_type(model, *KINDS[kind]):
        state = model.state_dict()
        # Loading does not copy all tensors.
        if kind == "sharded":
            optimizer_state = copy.deepcopy(FullyShardedDataParallel.optim_state_dict(model, optimizer))
    if kind == "full":
        assert torch.equal(flat(state.values()), trained)
    with FullyShardedDataParallel.state_dict_type(other, *KINDS[kind]):
        other.load_state_dict(state)
        if kind == "sharded":
            other_optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(
                other, other_optimizer, optimizer_state))
    assert torch.equal(trained, whole(other))
    if kind == "sharded":
        for m, o in ((model, optimizer), (other, other_optimizer)):
            advance(world, m, o, range(STEPS, 2 * STEPS))
        assert torch.equal(whole(model), whole(other))


def advance(world, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model(batch(step, world.rank))).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_from_a_saved_state(shared, kind):
    shared(2).run(run_state, kind)
