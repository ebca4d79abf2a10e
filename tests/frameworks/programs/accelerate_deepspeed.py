"""Trains with DeepSpeed under Accelerate, which passes the backend's name on:
`torchrun accelerate_deepspeed.py BACKEND FOLDER`."""
import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
from outcome import groups_in_use, save
from training import batch, flat, in_one_process, loss_of, network, stochastic_descent

STEPS = 4


def trained(backend, stage):
    plugin = DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=1)
    plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 8, "zero_allow_untested_optimizer": True}
    accelerator = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[InitProcessGroupKwargs(backend=backend)])
    model = network()
    model, optimizer = accelerator.prepare(model, stochastic_descent(model.parameters()))
    for step in range(STEPS):
        accelerator.backward(loss_of(model(batch(step, accelerator.process_index))))
        optimizer.step()
        optimizer.zero_grad()
    with deepspeed.zero.GatheredParameters(list(model.module.parameters())):
        return flat(model.module.parameters())


def main(backend, folder):
    # `accelerate launch --use_deepspeed` sets this variable.
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    torch.set_num_threads(1)
    results = {"ZeRO-3": trained(backend, 3), "in one process": in_one_process(dist.get_world_size(), STEPS)}
    save(folder, results | {"groups": groups_in_use()})
    dist.destroy_process_group()


main(*sys.argv[1:])
