"""Compares trainings under each stage of zero with one under DistributedDataParallel."""
import torch
import torch.distributed as dist
from training import flat

STAGES = ({"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 3, "hosts": "sharded"})


def compare_stages(names, model_for, train):
    """Prints for each optimizer and stage the largest difference of a parameter, divided by the largest change of a
    parameter. names: of the optimizers. model_for(name): a new model. train(name, options): the parameters after
    training with zero, or with DistributedDataParallel if there are no options."""
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    for name in names:
        judge = train(name, {})
        change = (judge - flat(model_for(name).parameters())).abs().max()
        for options in STAGES:
            difference = ((train(name, options) - judge).abs().max() / change).item()
            if dist.get_rank() == 0:
                print(f"RESULT {name} {' '.join(map(str, options.values()))} {difference:.3e}", flush=True)
    dist.destroy_process_group()
