"""ZeRO on tutti: each rank keeps a part of the optimizer's state, and of the parameters a host has one copy, or each
rank has.

    model, optimizer = torch_tutti.zero.shard(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in batches:
        loss_of(model(batch)).backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
"""
from torch_tutti.zero._ddp import wrap_ddp
from torch_tutti.zero._model import shard
from torch_tutti.zero._optimizer import ZeroOptimizer

__all__ = ["ZeroOptimizer", "shard", "wrap_ddp"]
