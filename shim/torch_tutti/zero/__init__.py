"""ZeRO on tutti: each rank keeps a part of the optimizer's state. The parameters have one copy on each host or on each
rank, or are divided among the ranks.

    model, optimizer = torch_tutti.zero.shard(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in batches:
        loss_of(model(batch)).backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

The modules accelerate, lightning and transformers are for programs of these frameworks, and import them.
"""
from torch_tutti.zero._clipping import clip_grad_norm_
from torch_tutti.zero._contexts import edit, no_sync, whole
from torch_tutti.zero._ddp import wrap_ddp
from torch_tutti.zero._deepspeed import from_deepspeed
from torch_tutti.zero._optimizer import ZeroOptimizer
from torch_tutti.zero._several import shard_several
from torch_tutti.zero._shard import shard
from torch_tutti.zero._sharded_optimizer import ShardedOptimizer, sharded

__all__ = ["ShardedOptimizer", "ZeroOptimizer", "clip_grad_norm_", "edit", "from_deepspeed", "no_sync", "shard",
           "shard_several", "sharded", "whole", "wrap_ddp"]
