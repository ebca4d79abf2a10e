"""Gradients of 16 bits that the ranks sum in float32: as an explicit sum, as FSDP2 with the same policy, and as
DistributedDataParallel with a communication hook."""
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import same_on_all_ranks
from zero_training import Network, equal, go_back, ids_of, loss_of, refused, values

from torch_tutti import zero

OPTIMIZERS = {"adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
              "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
              "pieces": (torch.optim.RMSprop, {"lr": 0.001}),
              "whole": (torch.optim.Adafactor, {"lr": 0.05})}


def average_wide(world, parameters):
    """Returns the averages over the ranks in float32, as FSDP2 has them with reduce_dtype=torch.float32."""
    found = [p.grad.float().mul_(1 / world.size) for p in parameters]
    for gradient in found:
        dist.all_reduce(gradient)
    return found


def run_explicit(world, dtype, name, turns, options):
    """The judge keeps float32 values beside its parameters, and rounds after each step."""
    kind, settings = OPTIMIZERS[name]
    judge, model = Network(16).to(dtype), Network(16).to(dtype)
    kept = [p.detach().float().requires_grad_() for p in judge.parameters()]
    theirs = kind(kept, **settings)
    model, mine = zero.shard(model, kind(model.parameters(), **settings), reduce_dtype=torch.float32, **options)
    for step in range(4):
        for turn in range(turns):
            loss_of(judge(ids_of(step, world.rank, turn))).backward()
        go_back(model, mine, step, world.rank, turns)
        averages = average_wide(world, judge.parameters())
        for p, value, average in zip(judge.parameters(), kept, averages):
            value.grad, p.grad = average, None
        for parameter, average in zip(model.parameters(), averages) if step == 2 else ():
            found = mine.gradient(parameter)
            assert found.dtype == torch.float32 and torch.equal(found, average)
        theirs.step()
        mine.step()
        mine.zero_grad()
        with torch.no_grad():
            for p, value in zip(judge.parameters(), kept):
                p.copy_(value)
        with mine.whole():
            equal(world, values(model).float(), values(judge).float())


@pytest.mark.one_host("over hosts sums have another order")
@pytest.mark.parametrize("dtype, name, turns, options", [
    (torch.bfloat16, "adamw", 2, {"stage": 3, "hosts": "shared"}), (torch.float16, "momentum", 1, {"stage": 0}),
    (torch.bfloat16, "adamw", 1, {"stage": 3, "hosts": "sharded"}), (torch.bfloat16, "pieces", 1, {"stage": 2}),
    (torch.float16, "whole", 1, {"stage": 1}), (torch.bfloat16, "momentum", 1, {"stage": 1, "buffers": 1})])
def test_sums_in_float32(shared, dtype, name, turns, options):
    shared(2).run(run_explicit, dtype, name, turns, options)


def layers():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 7))


def run_beside_fsdp(world, reduce_dtype):
    # without a type, FSDP2 sums in that of the parameters that compute, but in float32 from torch 2.15 on
    policy = {"param_dtype": torch.bfloat16, "reduce_dtype": reduce_dtype or torch.bfloat16}
    mesh = init_device_mesh("cpu", (world.size,))
    judge, model = layers(), layers()
    for module in (judge[0], judge[2], judge):
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    theirs = torch.optim.SGD(judge.parameters(), lr=0.5)
    model, mine = zero.shard(model, torch.optim.SGD(model.parameters(), lr=0.5), precision="bf16",
                             reduce_dtype=reduce_dtype)
    for step in range(3):
        for trained, optimizer in ((judge, theirs), (model, mine)):
            optimizer.zero_grad()
            loss_of(trained(ids_of(step, world.rank).float() / 48)).backward()
            optimizer.step()
    state = mine.state_dict()["state"]
    for number, parameter in enumerate(judge.parameters()):
        assert torch.equal(state[number]["master"], parameter.full_tensor()), number


@pytest.mark.one_host("over hosts sums have another order")
@pytest.mark.parametrize("reduce_dtype", [torch.float32, None])
def test_sums_as_fsdp2_has_them(shared, reduce_dtype):
    shared(2).run(run_beside_fsdp, reduce_dtype)


def sum_wide(size, bucket):
    """A communication hook of DistributedDataParallel that sums in float32."""
    work = dist.all_reduce(wide := bucket.buffer().float().mul_(1 / size), async_op=True)
    return work.get_future().then(lambda _: wide.to(bucket.buffer().dtype))


def run_without_optimizer(world):
    """Gradients that stay in `grad` are rounded once, after the sum."""
    judge, ddp = Network(16).bfloat16(), DistributedDataParallel(Network(16).bfloat16())
    ddp.register_comm_hook(world.size, sum_wide)
    models = [zero.shard(Network(16).bfloat16(), reduce_dtype=torch.float32, **options)
              for options in ({"stage": 0}, {"stage": 2, "gradients": "whole"})]
    models.append(ddp)
    for each in (judge, *models):
        loss_of(each(ids_of(1, world.rank))).backward()
    for p, average, *others in zip(judge.parameters(), average_wide(world, judge.parameters()),
                                   *(model.parameters() for model in models)):
        assert all(torch.equal(other.grad, average.bfloat16()) for other in others)
    torch.optim.Adafactor(models[1].parameters(), lr=0.1).step()
    same_on_all_ranks(world, values(models[1]))


@pytest.mark.one_host("over hosts sums have another order")
def test_whole_gradients(shared):
    shared(3).run(run_without_optimizer)


def run_refusals(world):
    def shard(dtype=torch.float32, **options):
        model = Network(16).to(dtype)
        return zero.shard(model, torch.optim.AdamW(model.parameters()), stage=2, **options)[1]
    refused(NotImplementedError, "reduce_dtype=torch.bfloat16, but the gradient of scale is torch.float32; .* use "
            "compression='bf16'", lambda: shard(reduce_dtype=torch.bfloat16))
    refused(NotImplementedError, "reduce_dtype=torch.float32, but the gradient of scale is torch.float64",
            lambda: shard(torch.float64, reduce_dtype=torch.float32))
    refused(NotImplementedError, "reduce_dtype=torch.float32 and compression=, .* choose one",
            lambda: shard(torch.bfloat16, reduce_dtype=torch.float32, compression="int8"))
    refused(ValueError, "reduce_dtype='fp32'; it must be torch.float32", lambda: shard(reduce_dtype="fp32"))
    model = Network(16)
    refused(NotImplementedError, "reduce_dtype=torch.float16, but the gradient of scale is torch.float32",
            lambda: zero.shard(model, stage=0, reduce_dtype=torch.float16))
    for same in (shard(torch.bfloat16, reduce_dtype=torch.bfloat16),
                 shard(reduce_dtype=torch.float32, compression="int8"),
                 shard(precision="bf16", reduce_dtype=torch.bfloat16)):
        assert not same._manager.sums_in_float32
    ddp = DistributedDataParallel(Network(16).bfloat16())
    optimizer = zero.wrap_ddp(ddp, torch.optim.AdamW(ddp.parameters()), reduce_dtype=torch.float32)
    loss_of(ddp(ids_of(1, world.rank))).backward()
    assert optimizer.gradient(ddp.module.scale).dtype == torch.float32


def test_types_that_cannot_be(shared):
    shared(2).run(run_refusals)
