"""Trains a transformer whose parameters are sharded by fully_shard. It is made on the meta device, gets its values from
rank 0, and is trained with prefetching and, on request, in mixed precision. In the end rank 0 writes all parameters.

    torchrun --nproc-per-node 2 fsdp.py --backend tutti --checkpoint FILE
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 50, 16, 32, 4, 3
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.before_attention(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.layers(self.before_layers(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def make(checkpoint, policy):
    """Returns the sharded model and its optimizer, with the values of rank 0: from the checkpoint, or random ones."""
    with torch.device("meta"):
        model = Transformer()
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    for block, following in zip(model.blocks, model.blocks[1:]):
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first, resumed, state = dist.get_rank() == 0, os.path.exists(checkpoint), {}
    if first:
        torch.manual_seed(0)
        state = torch.load(checkpoint, weights_only=True) if resumed else {"model": Transformer().state_dict()}
    set_model_state_dict(model, state.get("model", {}), options=FROM_RANK_0)
    if resumed:
        set_optimizer_state_dict(model, optimizer, state.get("optimizer", {}), options=FROM_RANK_0)
        if first:
            print("goes on from the checkpoint")
    return model, optimizer


def batch(step):
    """Returns sequences that count upwards from a random word."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    start = torch.randint(WORDS, (8, 1), generator=generator)
    return (start + torch.arange(LENGTH + 1)) % WORDS


def train(model, optimizer, steps):
    for step in steps:
        words = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words[:, :-1]).float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.9f} norm {norm.item():.9f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--first", type=int, default=0, help="number of the first step")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--mixed-precision", action="store_true", help="parameters in bfloat16, gradients in float32")
    parser.add_argument("--checkpoint", required=True, help="file to resume from if it exists, and to write")
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    model, optimizer = make(options.checkpoint, policy if options.mixed_precision else {})
    train(model, optimizer, range(options.first, options.first + options.steps))
    state = {"model": get_model_state_dict(model, options=WHOLE),
             "optimizer": get_optimizer_state_dict(model, optimizer, options=WHOLE)}
    if dist.get_rank() == 0:
        torch.save(state, options.checkpoint)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
