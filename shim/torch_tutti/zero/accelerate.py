"""ZeRO in a program of Hugging Face Accelerate, after `accelerator.prepare`."""
from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch.nn.parallel import DistributedDataParallel

from torch_tutti.zero._ddp import wrap_ddp
from torch_tutti.zero._optimizer import ZeroOptimizer


def shard(accelerator: Accelerator, model: torch.nn.Module, optimizer: AcceleratedOptimizer, *, stage: int = 3,
          **options: Any) -> ZeroOptimizer:
    """Lets zero sum the gradients and take the steps of what `accelerator.prepare(model, optimizer)` has returned.
    The program goes on with the same model and optimizer: backward, accumulate, clip_grad_norm_, clip_grad_value_,
    schedulers, save_state and load_state work as before. Returns the ZeroOptimizer, which the prepared optimizer calls
    from now on. Collective.

    stage, options: those of `zero.shard`. The default group must be tutti's. Raises ValueError for a model that
    Accelerate has not wrapped for data parallelism, or has compiled."""
    if not isinstance(model, DistributedDataParallel) or not isinstance(optimizer, AcceleratedOptimizer):
        raise ValueError("zero.accelerate.shard: pass the model and the optimizer that accelerator.prepare returned, "
                         "with several processes and without dynamo; here they are a "
                         f"{type(model).__name__} and a {type(optimizer).__name__}, and the Accelerator has "
                         f"{accelerator.num_processes} processes of {accelerator.distributed_type}")
    optimizer.optimizer = wrap_ddp(model, optimizer.optimizer, stage=stage, **options)
    return optimizer.optimizer
