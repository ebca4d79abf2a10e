"""Trains with Accelerate on two ranks, runs its operations, and saves and loads its state.

    torchrun accelerate_training.py BACKEND FOLDER

Accelerate uses the process group that is there already, so the backend's name is given to torch.distributed.
"""
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DDPCommunicationHookType, broadcast, broadcast_object_list, gather_object, set_seed
from outcome import groups_in_use, save
from training import batch, flat, in_one_process, loss_of, network, stochastic_descent

STEPS = 4


def fresh(**options):
    """Returns an Accelerator with these options, as the only one of the process: Accelerate keeps the options of the
    first one in its classes, so these are reset."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def train(accelerator, model, optimizer, steps=range(STEPS)):
    for step in steps:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(batch(step, accelerator.process_index))))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 100)
            optimizer.step()
            optimizer.zero_grad()
    return flat(model.parameters())


def prepared(accelerator):
    model = network()
    return accelerator.prepare(model, stochastic_descent(model.parameters()))


def trained(**options):
    """Trains a model after `prepare`, which broadcasts the parameters of rank 0 and wraps it for data parallelism."""
    accelerator = fresh(**options)
    return train(accelerator, *prepared(accelerator))


def hooked(hook, **state):
    """Trains with a communication hook, which sends gradients in another form."""
    return trained(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=hook, comm_state_option=state)])


def resumed(folder):
    """Trains two steps, saves, trains two other steps, loads, and trains to the end."""
    accelerator = fresh()
    model, optimizer = prepared(accelerator)
    train(accelerator, model, optimizer, range(2))
    accelerator.save_state(folder)
    train(accelerator, model, optimizer, range(2))
    accelerator.load_state(folder)
    return train(accelerator, model, optimizer, range(2, STEPS))


def exchanged():
    """Runs every operation of Accelerate, with values and lengths that differ between the ranks. Returns the results by
    name."""
    accelerator = fresh()
    rank = accelerator.process_index
    mine = torch.arange(3) + 10 * rank
    return {"gather": accelerator.gather({"a": mine, "b": [mine.float(), torch.tensor(rank)]}),
            "gather of objects": gather_object([f"rank {rank}", {"its": rank}]),
            "sum": accelerator.reduce(mine, reduction="sum"),
            "mean": accelerator.reduce(mine.float(), reduction="mean"),
            "broadcast": broadcast(mine.clone(), from_process=1),
            "broadcast of objects": broadcast_object_list([rank, f"rank {rank}"], from_process=1),
            "padded": accelerator.pad_across_processes(torch.ones(2 + rank, 2), pad_index=-1),
            "trigger": triggered(accelerator)}


def triggered(accelerator):
    if accelerator.process_index == 1:
        accelerator.set_trigger()
    return accelerator.check_trigger()


def evaluated():
    """Gathers a data set that the ranks cannot share evenly: gather_for_metrics must drop the padding."""
    accelerator = fresh()
    numbers = torch.utils.data.TensorDataset(torch.arange(22))
    loader = accelerator.prepare(torch.utils.data.DataLoader(numbers, batch_size=4))
    return torch.cat([accelerator.gather_for_metrics(rows) for (rows,) in loader])


def shuffled():
    """Gathers data that is shuffled by the random state of rank 0: read by all ranks, then by rank 0 alone."""
    set_seed(3)
    numbers = torch.utils.data.TensorDataset(torch.arange(24))
    found = []
    for options in ({}, {"dispatch_batches": True}):
        accelerator = fresh(dataloader_config=DataLoaderConfiguration(**options))
        loader = accelerator.prepare(torch.utils.data.DataLoader(numbers, batch_size=4, shuffle=True))
        found.append(torch.cat([accelerator.gather(rows) for (rows,) in loader]))
    return found


def main(backend, folder):
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    results = {"in one process": in_one_process(dist.get_world_size(), STEPS),
               "trained": trained(),
               "accumulated": trained(gradient_accumulation_steps=2),
               "bfloat16": trained(mixed_precision="bf16"),
               "float16 gradients": hooked(DDPCommunicationHookType.FP16),
               "PowerSGD": hooked(DDPCommunicationHookType.POWER_SGD, start_powerSGD_iter=2)}
    results |= {"resumed": resumed(os.path.join(folder, "checkpoint")), "exchanged": exchanged(),
                "evaluated": evaluated(), "shuffled": shuffled(), "groups": groups_in_use()}
    save(folder, results)
    fresh().end_training()


main(*sys.argv[1:])
