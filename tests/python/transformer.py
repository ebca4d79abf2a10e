"""A small transformer and how its parts are divided among the ranks of a mesh: tensor parallel along heads and hidden
units, sequence parallel between them, the vocabulary divided at both ends."""
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

VOCABULARY, LENGTH, WIDTH, HEADS, BATCH = 24, 8, 16, 4, 4


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)]

    def forward(self, x):
        query, key, value = [layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                             for layer in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = torch.nn.LayerNorm(WIDTH), Attention()
        self.feed_forward_norm, self.feed_forward = torch.nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(torch.nn.Module):
    def __init__(self, layers=2, seed=11):
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList([Block() for _ in range(layers)])
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.output = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def tokens(seed):
    """Returns a batch: tokens, and the token that follows each."""
    text = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return text[:, :-1], text[:, 1:]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def block_plan(sequence):
    """Returns the plan of a block. sequence: between layers, each rank has a piece of the sequence of the activations;
    otherwise all of them."""
    outside = Shard(1) if sequence else Replicate()
    plan = {"attention.query": ColwiseParallel(), "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(), "attention.output": RowwiseParallel(output_layouts=outside),
            "feed_forward.up": ColwiseParallel(), "feed_forward.down": RowwiseParallel(output_layouts=outside)}
    if sequence:
        gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan |= {"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel(),
                 "attention": PrepareModuleInput(**gather), "feed_forward": PrepareModuleInput(**gather)}
    return plan


def parallelize(model, mesh, sequence=True, divided_loss=False):
    """Divides the model in place. With `divided_loss` the logits stay divided along the vocabulary, as `loss_parallel`
    needs them."""
    outside = Shard(1) if sequence else Replicate()
    logits = {"output_layouts": Shard(-1) if divided_loss else Replicate(), "use_local_output": not divided_loss}
    plan = {"tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
            "output": ColwiseParallel(input_layouts=outside, **logits)}
    if sequence:
        plan["norm"] = SequenceParallel()
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        parallelize_module(layer, mesh, block_plan(sequence))
    return model
