"""Trains with Lightning's Fabric and Trainer on two ranks: `torchrun lightning_training.py BACKEND FOLDER`.

The backend's name is given to their strategies.
"""
import os
import sys

import lightning
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from lightning.fabric.strategies import DDPStrategy as FabricStrategy
from lightning.fabric.strategies import ModelParallelStrategy
from lightning.pytorch.strategies import DDPStrategy
from outcome import groups_in_use, save
from training import batch, flat, in_one_process, loss_of, network, stochastic_descent

STEPS = 4
# torchrun has started the ranks, and sets these variables.
PLACE = {"accelerator": "cpu", "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
         "num_nodes": int(os.environ["GROUP_WORLD_SIZE"])}


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def loss(self, rows, name):
        loss = loss_of(self.network(rows))
        self.log(name, loss, sync_dist=True, on_epoch=True, on_step=False)
        return loss

    def training_step(self, rows, _):
        return self.loss(rows, "training")

    def validation_step(self, rows, _):
        self.loss(rows, "validation")

    def configure_optimizers(self):
        return stochastic_descent(self.parameters())


def loader():
    rows = torch.cat([batch(step, 0) for step in range(2 * STEPS)])
    return torch.utils.data.DataLoader(rows, batch_size=8)


def fit(backend, folder):
    trainer = lightning.Trainer(**PLACE, strategy=DDPStrategy(process_group_backend=backend), max_epochs=2,
                                logger=False, enable_progress_bar=False, enable_model_summary=False,
                                default_root_dir=folder)
    model = Model()
    trainer.fit(model, loader(), loader())
    return {"parameters": flat(model.parameters()), "metrics": dict(trainer.callback_metrics)}


def fabric(backend):
    """Trains with Fabric, and runs its operations with values that differ between the ranks. Returns both results."""
    tool = lightning.Fabric(**PLACE, strategy=FabricStrategy(process_group_backend=backend))
    tool.launch()
    model = network()
    model, optimizer = tool.setup(model, stochastic_descent(model.parameters()))
    for step in range(STEPS):
        optimizer.zero_grad()
        tool.backward(loss_of(model(batch(step, tool.global_rank))))
        optimizer.step()
    mine = torch.arange(3.0) + tool.global_rank
    # This makes a group on gloo, and destroys it.
    with tool.rank_zero_first():
        pass
    return flat(model.parameters()), {"gather": tool.all_gather(mine), "broadcast": tool.broadcast([tool.global_rank]),
                                      **{op: tool.all_reduce(mine.clone(), reduce_op=op) for op in ("sum", "mean")}}


def sharded(backend):
    """Trains with the strategy for device meshes, with which Fabric shards a model by FSDP2."""
    def shard(model, mesh):
        torch.distributed.fsdp.fully_shard(model, mesh=mesh["data_parallel"])
        return model

    strategy = ModelParallelStrategy(shard, data_parallel_size=2, tensor_parallel_size=1,
                                     process_group_backend=backend)
    tool = lightning.Fabric(**PLACE, strategy=strategy)
    tool.launch()
    model = tool.setup_module(network())
    optimizer = tool.setup_optimizers(stochastic_descent(model.parameters()))
    for step in range(STEPS):
        optimizer.zero_grad()
        tool.backward(loss_of(model(batch(step, tool.global_rank))))
        optimizer.step()
    return flat(parameter.full_tensor() for parameter in model.parameters())


def main(backend, folder):
    torch.set_num_threads(1)
    parameters, operations = fabric(backend)
    results = {"one process": in_one_process(dist.get_world_size(), STEPS), "fabric": parameters,
               "operations": operations, "sharded": sharded(backend),
               "trainer": fit(backend, folder), "groups": groups_in_use()}
    save(folder, results)
    dist.destroy_process_group()


main(*sys.argv[1:])
