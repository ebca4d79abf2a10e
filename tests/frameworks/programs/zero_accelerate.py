"""Trains with Accelerate, by DistributedDataParallel and by zero at each stage. Saves the losses of each run, and those
after loading a saved state: `torchrun zero_accelerate.py BACKEND FOLDER`."""
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from outcome import groups_in_use, save
from training import batch, loss_of, network, stochastic_descent

import torch_tutti.zero.accelerate

STEPS, SAVED_AT = 50, 30
WAYS = {"DDP": None, "stage 0": {"stage": 0, "ahead": True}, "stage 2": {"stage": 2}, "stage 3": {"stage": 3},
        "sharded": {"stage": 3, "hosts": "sharded"}}


def prepared(options):
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    optimizer = stochastic_descent(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    if options is not None:
        torch_tutti.zero.accelerate.shard(accelerator, model, optimizer, **options)
    return accelerator, model, optimizer, scheduler


def losses(accelerator, model, optimizer, scheduler, steps, folder):
    """Trains for these steps of two batches each, saves the state before step SAVED_AT, and returns the losses."""
    found = []
    for step in steps:
        if step == SAVED_AT and folder:
            accelerator.save_state(folder)
        for turn in range(2):
            with accelerator.accumulate(model):
                loss = loss_of(model(batch(step + 100 * turn, accelerator.process_index)))
                found.append(loss.item())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 100)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return found


def text_of_error(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(backend, folder):
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    results = {}
    for way, options in WAYS.items():
        place = os.path.join(folder, way)
        results[way] = losses(*prepared(options), range(STEPS), place)
        again = prepared(options)
        again[0].load_state(place)
        results[f"{way} resumed"] = losses(*again, range(SAVED_AT, STEPS), None)
    again = prepared(None)
    again[0].load_state(os.path.join(folder, "stage 2"))
    results["DDP resumed from stage 2"] = losses(*again, range(SAVED_AT, STEPS), None)
    accelerator, model, optimizer, _ = prepared(None)
    results["not prepared"] = text_of_error(torch_tutti.zero.accelerate.shard, accelerator, model.module, optimizer)
    save(folder, results | {"groups": groups_in_use()})
    dist.destroy_process_group()


main(*sys.argv[1:])
