"""Trains as a DeepSpeed script does, by deepspeed.initialize and by zero.from_deepspeed with the same configuration.
Saves the losses of each run, and those after loading a checkpoint: `torchrun zero_deepspeed.py BACKEND FOLDER`."""
import json
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from outcome import groups_in_use, save
from training import batch, loss_of, network

from torch_tutti import zero

STEPS, SAVED_AT = 50, 25
SGD = {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}
ADAM = {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1, "torch_adam": True}}
DECAY = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 5, "total_num_steps": 60}}
# {case: (stages of zero, optimizer, further settings)}
CASES = {"SGD": ((0, 1, 2, 3), SGD, {}), "bf16": ((3,), SGD, {"bf16": {"enabled": True}}),
         "Adam, clipped": ((2,), ADAM, {"gradient_clipping": 0.01, "scheduler": DECAY})}


def write_config(folder, stage, optimizer, more):
    """Writes a configuration like those of existing scripts, and returns its path."""
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,
              "steps_per_print": 2000, "zero_allow_untested_optimizer": True, "fp16": {"enabled": False},
              "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True,
                                    "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "none"}},
              "optimizer": optimizer, **more}
    path = Path(folder) / f"ds{dist.get_rank()}.json"
    path.write_text(json.dumps(config))
    return str(path)


def losses(engine, steps=range(STEPS), folder=None):
    """Trains for these steps of two batches each, saves before step SAVED_AT, and returns the losses."""
    found, kind = [], next(engine.module.parameters()).dtype
    for step in steps:
        if step == SAVED_AT and folder:
            engine.save_checkpoint(folder, client_state={"step": step})
        for turn in range(2):
            loss = loss_of(engine(batch(step + 100 * turn, dist.get_rank()).to(kind)))
            found.append(loss.item())
            engine.backward(loss)
            engine.step()
    return found


def main(backend, folder):
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend=backend)
    results = {}
    for case, (stages, optimizer, more) in CASES.items():
        config = write_config(folder, 1 if "bf16" in more else 0, optimizer, more)
        model = network()
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        results[case] = losses(engine)
        for stage in stages:
            config = write_config(folder, stage, optimizer, more)
            place = Path(folder) / case / str(stage)
            results[f"{case}, stage {stage}"] = losses(zero.from_deepspeed(network(), config), folder=place)
            engine = zero.from_deepspeed(network(), config)
            path, state = engine.load_checkpoint(place)
            results[f"{case}, stage {stage} resumed"] = losses(engine, range(state["step"], STEPS))
    save(folder, results | {"groups": groups_in_use()})
    deepspeed.comm.destroy_process_group()


main(*sys.argv[1:])
