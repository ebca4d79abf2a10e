"""DistributedDataParallel: the same training on tutti and on gloo must give the same parameters, whatever options,
hooks and models are used. The plain case is also compared with one process that has the batches of all ranks.

Not here, because torch 2.13 itself fails on CPU tensors, with gloo as well (below site-packages/torch):
- SyncBatchNorm is refused, nn/modules/batchnorm.py:845-854.
- The batched hook of PowerSGD passes a matrix (distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py:808) where a
  batch of matrices is asserted (line 25).
- Mixed precision of DDP records an event, which the CPU has not (nn/parallel/distributed.py:1337); optimizers applied
  in backward ask for an accelerator's stream (accelerator/__init__.py:140).
- The hooks that quantize index the scales of one rank as if they were those of all (quantization_hooks.py:88-93).
"""
import contextlib
from dataclasses import dataclass, field
from typing import Callable

import pytest
import torch
import torch.distributed as dist
import torch_tutti
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from training import (WIDTH, agree, backward, batch, flat, in_one_process, loss_of, network, same_on_all_ranks,
                      stochastic_descent)

STEPS = 4


# ---- models ----
class Branches(torch.nn.Module):
    """A model that uses one of two layers, depending on the batch, so that a rank may have no gradient where another
    has one."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return (self.left if x.sum() > 0 else self.right)(self.first(x))


class Recomputed(torch.nn.Module):
    """A model whose middle layers run again in backward, which DDP permits when the graph is static."""

    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint
        x = self.layers[0](x)
        return self.layers[3:](checkpoint(self.layers[1:3], x, use_reentrant=True))


class Mixed(torch.nn.Module):
    """Parameters of several types, one of them frozen."""

    def __init__(self):
        super().__init__()
        self.single, self.brief = torch.nn.Linear(WIDTH, 30), torch.nn.Linear(30, 30, dtype=torch.bfloat16)
        self.long, self.frozen = torch.nn.Linear(30, 30, dtype=torch.float64), torch.nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.long(self.brief(self.single(self.frozen(x)).bfloat16()).double())


class Words(torch.nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = torch.nn.Embedding(16, 6, sparse=True), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.table((x[:, :4] * 5).long().remainder(16)))


def normalized():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 10), torch.nn.BatchNorm1d(10), torch.nn.Linear(10, 3))


# ---- hooks: each takes the model and its group ----
def hooked(hook):
    return lambda model, group: model.register_comm_hook(group, hook)


def in_bfloat16(group, bucket):
    """torch's own hook under another name: by its name torch refuses it where there is no NCCL
    (nn/parallel/distributed.py:2485-2504)."""
    return default_hooks.bf16_compress_hook(group, bucket)


def wrapped_in_bfloat16(group, bucket):
    """torch's own wrapper of hooks under another name, for the same reason as in_bfloat16."""
    return default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)(group, bucket)


def of_low_rank(hook, **options):
    def register(model, group):
        model.register_comm_hook(powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, **options), hook)
    return register


def built_in(kind):
    return lambda model, group: model._register_builtin_comm_hook(kind)


def with_optimizer(model, group):
    """Registers a hook that updates a parameter as soon as its gradient is reduced."""
    model._register_fused_optim(torch.optim.SGD, 0.05)


# ---- one training, many configurations ----
@dataclass
class Case:
    """One training. options: of DistributedDataParallel. batches: for each step; all but the last run without
    communication. alike: all ranks end with the same parameters."""
    model: Callable = network
    options: dict = field(default_factory=dict)
    hook: Callable | None = None
    batches: int = 1
    alike: bool = True


CASES = {
    "plain": Case(),
    "small buckets": Case(options={"bucket_cap_mb": 0.001}),
    "one bucket": Case(options={"bucket_cap_mb": 100}),
    "buckets as gradients": Case(options={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.005}),
    "gradients of their own": Case(options={"gradient_as_bucket_view": False, "bucket_cap_mb": 0.005}),
    "static graph": Case(options={"static_graph": True, "bucket_cap_mb": 0.005}),
    "static graph as views": Case(options={"static_graph": True, "gradient_as_bucket_view": True}),
    "recomputation": Case(Recomputed, {"static_graph": True}),
    "unused parameters": Case(Branches, {"find_unused_parameters": True}),
    "unused parameters as views": Case(Branches, {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
    "all parameters used": Case(options={"find_unused_parameters": True}),
    "accumulation": Case(batches=3),
    "accumulation as views": Case(options={"gradient_as_bucket_view": True}, batches=3),
    "unused parameters, accumulation": Case(Branches, {"find_unused_parameters": True}, batches=2),
    "buffers": Case(normalized),
    "buffers of their own": Case(normalized, {"broadcast_buffers": False}),
    "several types": Case(Mixed, {"bucket_cap_mb": 0.005}),
    "sparse gradients": Case(Words),
    "no synchronization at first": Case(options={"init_sync": False}),
    "gradients per parameter": Case(options={"bucket_cap_mb": 1e-6}),
    "allreduce hook": Case(hook=hooked(default_hooks.allreduce_hook)),
    "float16 hook": Case(hook=hooked(default_hooks.fp16_compress_hook), options={"bucket_cap_mb": 0.005}),
    "float16 wrapper": Case(hook=hooked(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))),
    "bfloat16 hook": Case(hook=hooked(in_bfloat16), options={"bucket_cap_mb": 0.005}),
    "bfloat16 wrapper": Case(hook=hooked(wrapped_in_bfloat16)),
    "built-in allreduce": Case(hook=built_in(dist.BuiltinCommHookType.ALLREDUCE)),
    "built-in float16": Case(hook=built_in(dist.BuiltinCommHookType.FP16_COMPRESS)),
    "PowerSGD": Case(hook=of_low_rank(powerSGD_hook.powerSGD_hook)),
    "PowerSGD of rank 2": Case(hook=of_low_rank(powerSGD_hook.powerSGD_hook, matrix_approximation_rank=2)),
    "PowerSGD, batched by shape": Case(hook=of_low_rank(powerSGD_hook.powerSGD_hook,
                                                        batch_tensors_with_same_shape=True)),
    "no communication": Case(hook=hooked(debugging_hooks.noop_hook), alike=False),
    "optimizer in the hook": Case(hook=with_optimizer),
}


def train_case(world, case, group):
    torch.manual_seed(3)
    model = DistributedDataParallel(case.model(), process_group=group, **case.options)
    if case.hook:
        case.hook(model, group)
    optimizer = stochastic_descent(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, step, world.rank, case.batches)
        optimizer.step()
    return flat(model.parameters()), flat([b for b in model.buffers()] or [torch.empty(0)])


def run_case(world, name):
    case = CASES[name]
    (parameters, buffers), (judge, judge_buffers) = (train_case(world, case, group) for group in (None, world.gloo))
    agree(world, parameters, judge)
    agree(world, buffers, judge_buffers)
    if case.alike:
        same_on_all_ranks(world, parameters)
    start = flat(case.model().parameters())
    assert parameters.isfinite().all() and not torch.equal(parameters, start)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_with_gloo(shared, name):
    shared(2).run(run_case, name)


@pytest.mark.parametrize("name", ["plain", "unused parameters", "accumulation", "PowerSGD", "buffers"])
def test_three_ranks_train_as_with_gloo(shared, name):
    shared(3).run(run_case, name)


def run_plain_against_one_process(world):
    parameters, _ = train_case(world, Case(options={"bucket_cap_mb": 0.005}), None)
    torch.testing.assert_close(parameters, in_one_process(world.size, STEPS))


@pytest.mark.parametrize("size", [2, 3])
def test_trains_as_one_process_with_all_batches(shared, size):
    shared(size).run(run_plain_against_one_process)


def run_communicating_callbacks(world):
    """Checks callbacks that communicate, for several buckets: blocking_futures gives them the order of the program."""
    case = Case(hook=of_low_rank(powerSGD_hook.powerSGD_hook), options={"bucket_cap_mb": 0.002})
    group = dist.new_group(pg_options=torch_tutti.Options(blocking_futures=True))
    parameters, again, third = (train_case(world, case, group)[0] for _ in range(3))
    same_on_all_ranks(world, parameters)
    assert torch.equal(parameters, again) and torch.equal(parameters, third) and parameters.isfinite().all()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("size", [2, 3])
def test_callbacks_may_communicate_with_blocking_futures(shared, size):
    shared(size).run(run_communicating_callbacks)


# ---- groups and several models ----
@contextlib.contextmanager
def groups_of(ranks):
    """A context with a group of these ranks for each backend. All ranks must enter it."""
    groups = [dist.new_group(ranks, backend=backend) for backend in ("tutti", "gloo")]
    yield groups
    for group in groups:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def run_in_subgroup(world):
    with groups_of([0, 2]) as groups:
        if world.rank != 1:
            (mine, _), (judge, _) = (train_case(world, Case(), group) for group in groups)
            # A sum of two terms has one order.
            assert torch.equal(mine, judge)
    dist.barrier()


def test_subgroup_trains_as_with_gloo(shared):
    shared(3).run(run_in_subgroup)


def train_two(world, group):
    """A generator and a critic, each trained through the other, as adversaries are."""
    torch.manual_seed(5)
    options = {"process_group": group, "bucket_cap_mb": 0.005}
    generator = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()), **options)
    critic = DistributedDataParallel(network(), broadcast_buffers=False, **options)
    for step in range(STEPS):
        for trained, sign in ((critic, 1), (generator, -1)):
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.05)
            generator.zero_grad()
            critic.zero_grad()
            (sign * loss_of(critic(generator(batch(step, world.rank))))).backward()
            optimizer.step()
    return flat([*generator.parameters(), *critic.parameters()])


def run_two(world):
    mine, judge = (train_two(world, group) for group in (None, world.gloo))
    agree(world, mine, judge)
    same_on_all_ranks(world, mine)


def test_two_models_in_turn_train_as_with_gloo(shared):
    shared(2).run(run_two)


def fill_buffers(world):
    layer = torch.nn.BatchNorm1d(4)
    layer.running_mean.fill_(world.rank + 1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), layer))
    model.eval()(torch.ones(2, 4))
    return layer.running_mean.sum().item()


def test_buffers_are_those_of_rank_0(shared):
    assert shared(2).run(fill_buffers) == [4, 4]


def wrap_different_models(world):
    DistributedDataParallel(torch.nn.Linear(4, 4, bias=world.rank == 0))


def test_different_models_are_an_error_on_all_ranks(shared):
    """DDP compares the models through the group first. Its own error must reach all ranks."""
    outcomes = shared(2).outcomes(wrap_different_models)
    assert all("DDP expects same model across all ranks" in o.text for o in outcomes), [o.text for o in outcomes]


# ---- ranks with different numbers of batches ----
def train_uneven(world, group, options):
    model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.005)
    optimizer = stochastic_descent(model.parameters())
    with model.join(**options):
        for step in range(2 + 2 * world.rank):
            optimizer.zero_grad()
            loss_of(model(batch(step, world.rank))).backward()
            optimizer.step()
    return flat(model.parameters())


def run_uneven(world, options):
    mine, judge = (train_uneven(world, group, options) for group in (None, world.gloo))
    agree(world, mine, judge)
    same_on_all_ranks(world, mine)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("initially", [True, False])
def test_join_with_uneven_inputs_trains_as_with_gloo(shared, size, initially):
    shared(size).run(run_uneven, {"divide_by_initial_world_size": initially})


def test_join_may_end_all_ranks_with_the_first(shared):
    outcomes = shared(2).outcomes(train_uneven, None, {"throw_on_early_termination": True})
    assert all(o.error == "RuntimeError" and "exhausted" in o.text for o in outcomes), [o.text for o in outcomes]


# ---- averaging models instead of gradients ----
def train_locally(world, group, subgroup):
    """Averages gradients of all ranks at first, then of pairs only, and the models of all ranks every second step."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer
    model = DistributedDataParallel(network(), process_group=group)
    state = post_localSGD_hook.PostLocalSGDState(group, subgroup, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2, process_group=group)
    optimizer = PostLocalSGDOptimizer(stochastic_descent(model.parameters()), averager)
    vectors = []
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model(batch(step, world.rank))).backward()
        optimizer.step()
        vectors.append(flat(model.parameters()))
    return torch.stack(vectors)


def run_local(world):
    pairs = [dist.new_subgroups(2, backend=backend) for backend in ("tutti", "gloo")]
    mine, judge = (train_locally(world, group, pair) for group, (pair, _) in zip((None, world.gloo), pairs))
    torch.testing.assert_close(mine, judge, rtol=1e-5, atol=1e-6)
    everyone = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(everyone, mine)
    partner, stranger = everyone[world.rank ^ 1], everyone[world.rank ^ 2]
    assert torch.equal(mine, partner)
    apart = [not torch.equal(mine[step], stranger[step]) for step in range(len(mine))]
    for _, groups in pairs:
        for group in groups:
            if group != dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
    return apart


def test_post_local_descent_averages_models(shared):
    """After the start, ranks of different pairs differ until the models are averaged."""
    assert shared(4).run(run_local) == [[False, False, False, True, False, True]] * 4


def average_in_levels(world):
    """Each rank adds its own number. All ranks average in the first step and every second one, pairs in the others."""
    from collections import OrderedDict
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
    averager = HierarchicalModelAverager(OrderedDict([(1, 2), (2, 4)]), warmup_steps=0)
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.zeros(3)
    seen = []
    for _ in range(3):
        parameter.data += world.rank
        averager.average_parameters([parameter])
        seen.append(parameter[0].item())
    return seen


def test_hierarchical_averager_averages_in_levels(shared):
    # 1.5 is the mean of 0 to 3. The second step adds the mean of a pair, the third averages over all ranks again.
    low, high = [1.5, 2.0, 4.5], [1.5, 4.0, 4.5]
    assert shared(4).run(average_in_levels) == [low, low, high, high]
