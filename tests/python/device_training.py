"""Training on a device, for any kind of device, shared by test_devices.py and tests/gpu/test_cuda.py. Results
are compared with one process that trains on all batches, on the CPU. All of it is in float64, so that the order in
which a device sums does not matter."""
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training import batch, flat, network, stochastic_descent

STEPS = 3


def train(model, device, ranks):
    """Trains the model on the mean of the losses of these ranks' batches."""
    optimizer = stochastic_descent(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [model(batch(step, rank).double().to(device)).square().mean() for rank in ranks]
        (sum(losses) / len(losses)).backward()
        optimizer.step()


def expected(world):
    model = network().double()
    train(model, "cpu", range(world.size))
    return flat(model.parameters())


def check_data_parallel(world, options):
    """Checks DistributedDataParallel, whose buckets complete while backward goes on."""
    device = world.kept["device"]
    model = DistributedDataParallel(network(seed=7 + world.rank).double().to(device), **options)
    # All ranks have got the parameters of rank 0.
    with torch.no_grad():
        for ours, right in zip(model.parameters(), network().double().parameters()):
            torch.testing.assert_close(ours.cpu(), right)
    train(model, device, [world.rank])
    torch.testing.assert_close(flat(model.parameters()).cpu(), expected(world))


def check_fully_sharded(world):
    """Checks FSDP2, which gathers and reduces on streams of its own."""
    device = world.kept["device"]
    mesh = DeviceMesh(device.type, list(range(world.size)))
    model = network().double().to(device)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, device, [world.rank])
    whole = flat(parameter.full_tensor() for parameter in model.parameters())
    torch.testing.assert_close(whole.cpu(), expected(world))
