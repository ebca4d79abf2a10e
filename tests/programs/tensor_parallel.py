"""Trains a transformer that is divided twice. The ranks of a row of the mesh divide each layer (tensor and sequence
parallelism, with the loss over a divided vocabulary). The rows shard these parts (fully sharded data parallelism).

    torchrun --nproc-per-node 4 tensor_parallel.py --backend tutti --tensor 2
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

WORDS, LENGTH, WIDTH, HEADS, LAYERS, ROWS = 48, 16, 32, 4, 2, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.w2 = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def divide(model, mesh):
    """Divides the model, and returns it. Between the layers each rank of a row has a piece of each sequence."""
    gather = dict(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh["tensor"], {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.layers:
        parallelize_module(layer, mesh["tensor"], {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**gather), "feed_forward": PrepareModuleInput(**gather),
            "attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(), "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1))})
        fully_shard(layer, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def text(step, mesh):
    """Returns the words of this row of the mesh. Each word is the one before it plus the stride of its sequence."""
    generator = torch.Generator().manual_seed(step)
    first, stride = torch.randint(WORDS, (ROWS, 1), generator=generator), torch.randint(1, 5, (ROWS, 1),
                                                                                       generator=generator)
    whole = (first + stride * torch.arange(LENGTH + 1)) % WORDS
    mine = whole.chunk(mesh["data"].size())[mesh["data"].get_local_rank()]
    return mine[:, :-1], mine[:, 1:]


def train(mesh, steps):
    torch.manual_seed(0)
    model = divide(Transformer(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    for step in range(steps):
        words, following = text(step, mesh)
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(model(words).flatten(0, 1), following.flatten())
            loss.backward()
        optimizer.step()
        mean = loss.detach().full_tensor()
        dist.all_reduce(mean, dist.ReduceOp.SUM, group=mesh["data"].get_group())
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / mesh['data'].size():.9f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="tutti")
    parser.add_argument("--tensor", type=int, default=2, help="the number of ranks that divide a layer")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    dist.init_process_group(options.backend)
    rows = dist.get_world_size() // options.tensor
    train(init_device_mesh("cpu", (rows, options.tensor), mesh_dim_names=("data", "tensor")), options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
