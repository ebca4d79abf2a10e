"""Divides the GPT of train_gpt.py among the ranks of a grid: `train_gpt.py --tp 2 --pp 2 --dp 2 --ep 2 --zero 1`.

tp divides the heads and the inner columns of each block. pp divides the blocks into stages, through which microbatches
go. dp divides the sequences of a step. ep divides the experts, which replace the MLP of each block, over the ranks of
dp. zero divides optimizer state and more, over the ranks of dp that have the same parameters. Every combination trains
like one process, because a step always has the same `--batch` sequences, and each rank begins with its part of the same
whole model.
"""
import math
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import torch_tutti
from torch_tutti import experts
from torch_tutti.parallel import ColumnLinear, RowLinear

TOP_EXPERTS = 2         # experts that process a token
WARM_STEPS = 5          # not timed


# ---- the model ----
class ScaleGradient(torch.autograd.Function):
    """Returns x unchanged, and multiplies its gradient by the factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Experts(nn.Module):
    """The experts of this rank: all experts until keep_own(). A divided expert gets the tokens of all `ep` ranks, but
    its gradient is averaged only over the ranks that have the same expert. So `share`, 1 / ep, scales the gradient."""

    def __init__(self, count, width):
        super().__init__()
        self.up = nn.Parameter(torch.empty(count, width, 4 * width))
        self.down = nn.Parameter(torch.empty(count, 4 * width, width))
        self.share = 1.0

    def keep_own(self, own, share):
        """Drops all experts except those with the indices `own`."""
        self.up, self.down = (nn.Parameter(part.detach()[list(own)].clone()) for part in (self.up, self.down))
        self.share = share

    def forward(self, rows, counts):
        """rows: tokens in the order of their experts; counts: the number of tokens of each expert."""
        up, down = (ScaleGradient.apply(part, self.share) for part in (self.up, self.down))
        parts = rows.split(counts.tolist())
        return torch.cat([F.gelu(part @ a) @ b for part, a, b in zip(parts, up, down)])


class Mixture(nn.Module):
    """Replaces an MLP: each token goes to the experts that the router chooses. It has all experts until divide()."""

    def __init__(self, count, width):
        super().__init__()
        self.router, self.experts, self.dispatcher = nn.Linear(width, count, bias=False), Experts(count, width), None

    def divide(self, group):
        """Divides the experts among the ranks of the group."""
        self.dispatcher = experts.Dispatcher(self.router.out_features, group)
        self.experts.keep_own(self.dispatcher.mine, 1 / self.dispatcher.ranks)

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen = experts.route(self.router(tokens), TOP_EXPERTS)
        if self.dispatcher is not None:
            return self.dispatcher.run(self.experts, tokens, weights, chosen).view_as(x)
        order = chosen.flatten().argsort(stable=True)       # by expert, like the rows of a dispatcher
        rows = self.experts(tokens[order // TOP_EXPERTS],
                            torch.bincount(chosen.flatten(), minlength=len(self.experts.up)))
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        return (rows[places].view(*chosen.shape, -1) * weights[..., None]).sum(1).view_as(x)


class Front(nn.Module):
    """The layers before the blocks."""

    def __init__(self, gpt):
        super().__init__()
        self.token, self.position = gpt.token, gpt.position

    def forward(self, ids):
        return self.token(ids) + self.position.weight[: ids.shape[1]]


class Back(nn.Module):
    """The layers after the blocks."""

    def __init__(self, gpt):
        super().__init__()
        self.norm, self.head = gpt.norm, gpt.head

    def forward(self, x):
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def add_experts(gpt, count):
    """Replaces each MLP by a mixture of `count` experts. The random generator has the same state on all ranks."""
    for block in gpt.blocks:
        block.mlp = Mixture(count, block.norm_mlp.normalized_shape[0])
        for name, weight in block.mlp.named_parameters():
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * len(gpt.blocks)) if name.endswith("down") else 0.02)


def divide_block(block, group):
    """Divides a block among the ranks of the group `tp`. A mixture is not divided; it gets equal tokens on all of
    them."""
    block.heads //= dist.get_world_size(group)
    block.qkv, block.join = ColumnLinear.of(block.qkv, group, parts=3), RowLinear.of(block.join, group)
    if isinstance(block.mlp, nn.Sequential):
        up, gelu, down = block.mlp
        block.mlp = nn.Sequential(ColumnLinear.of(up, group), gelu, RowLinear.of(down, group))


# ---- training ----
class ParallelTrainer:
    """Trains this rank's part of the model, with the same loop as train_gpt.Trainer."""

    def __init__(self, options, text, gpt, progress):
        self.options, self.text, self.progress = options, text, progress
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.grid = torch_tutti.grid(tp=options.tp, pp=options.pp, dp=options.dp, ep=options.ep)
        self.data_ranks = self.grid.size("dp")
        if options.experts:
            add_experts(gpt, options.experts)
        self.model = self.divide_model(gpt)
        self.optimizers = self.make_optimizers(options)
        self.losses, self.seconds = [], []

    def divide_model(self, gpt):
        """Returns this rank's stages, with its part of each block, and makes the runner of the pipeline."""
        pipeline = torch_tutti.Pipeline(self.options.schedule, self.options.pp, self.options.microbatches)
        stages = pipeline.split([Front(gpt), *gpt.blocks, Back(gpt)])
        mine = nn.ModuleList(stages[i] for i in pipeline.stages_of(self.grid.index("pp")))
        for block in [layer for stage in mine for layer in stage if hasattr(layer, "qkv")]:
            if isinstance(block.mlp, Mixture) and self.options.ep > 1:
                block.mlp.divide(self.grid.experts.group("ep"))
            if self.options.tp > 1:
                divide_block(block, self.grid.group("tp"))
        self.runner = pipeline.runner(list(mine), loss_of, group=self.grid.group("pp"))
        return mine

    def averaged_modules(self):
        """Returns pairs: modules with parameters of their own, and the group that averages their gradients."""
        own = [m for m in self.model.modules() if any(True for _ in m.parameters(recurse=False))]
        mixed = [m for m in own if isinstance(m, Experts)]
        dense = [m for m in own if not isinstance(m, Experts)]
        over = self.grid.experts.group("dp") if self.grid.experts else self.grid.group("dp")
        return [pair for pair in ((dense, self.grid.group("dp")), (mixed, over)) if pair[0]]

    def make_optimizers(self, options):
        """Returns triples: an optimizer, its parameters, and the group that averages their gradients."""
        made = []
        for modules, group in self.averaged_modules():
            parameters = [p for m in modules for p in m.parameters(recurse=False)]
            optimizer = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.99), weight_decay=0.1)
            if options.zero is not None:
                _, optimizer = torch_tutti.zero.shard(nn.ModuleList(modules), optimizer, stage=options.zero,
                                                      group=group)
            made.append((optimizer, parameters, group))
        return made

    def batch(self, part, step):
        """Returns this rank's part (by dp) of the inputs and targets that one process would have."""
        inputs, targets = self.text.sample(part, self.options.seed, 0, step)
        return tuple(whole.chunk(self.data_ranks)[self.grid.index("dp")] for whole in (inputs, targets))

    def average_gradients(self):
        """Averages the gradients over the ranks of dp. Does nothing with ZeRO, which averages them itself."""
        for _, parameters, group in self.optimizers:
            if self.options.zero is None and dist.get_world_size(group) > 1:
                flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size(group)
                dist.all_reduce(flat, group=group)
                for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
                    p.grad.copy_(part.view_as(p))

    def step(self, step, rate):
        begin = time.perf_counter()
        inputs, targets = self.batch("train", step)
        for optimizer, _, _ in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss = self.runner.step(inputs, target=targets)
        self.average_gradients()
        for optimizer, _, _ in self.optimizers:
            optimizer.step()
        self.losses.append(self.mean_over_ranks(loss))
        self.seconds.append(time.perf_counter() - begin)

    def mean_over_ranks(self, loss):
        """Returns the mean of the ranks' losses, on all ranks. `loss` is None on a rank without the last stage."""
        total = torch.tensor([0.0, 0.0] if loss is None else [loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    def run(self, rate_of):
        for step in range(self.options.steps):
            self.step(step, rate_of(step))
            self.progress.show(step, self.losses[-1], self.tokens_per_second(), 0.0)
        validation = []
        for step in range(8):
            inputs, targets = self.batch("validation", step)
            validation.append(self.mean_over_ranks(self.runner.eval(inputs, target=targets)))
        return {"backend": "tutti", "losses": self.losses, "validation": statistics.mean(validation),
                "tokens_per_second": self.tokens_per_second(), "waiting": None,
                "step_ms": 1e3 * statistics.median(self.seconds[WARM_STEPS:] or self.seconds)}

    def tokens_per_second(self):
        seconds = self.seconds[WARM_STEPS:] or self.seconds
        return len(seconds) * self.options.batch * self.options.context / max(sum(seconds), 1e-9)


def complete_options(parser, options):
    """Sets the options that are left out, and ends the program if options exclude each other. --tp, --pp and --ep are 1
    by default, and --dp is --ep."""
    options.experts = options.experts or (8 if options.ep else 0)
    options.tp, options.pp, options.ep = options.tp or 1, options.pp or 1, options.ep or 1
    options.dp = options.dp or options.ep
    options.ranks = options.tp * options.pp * options.dp
    options.microbatches = options.microbatches or (2 * options.pp if options.pp > 1 else 1)
    if options.compare or options.backend != "tutti" or options.device != "cpu" or options.optimizer != "adamw" or any(
            (options.checkpoint, options.resume, options.compress, options.ahead, options.trace, options.precision)):
        parser.error("--tp, --pp, --dp and --ep work only with tutti, the CPU and adamw, and without checkpoints, "
                     "--compare, --compress, --ahead, --trace and --precision")
    if options.batch % (options.dp * options.microbatches):
        parser.error(f"--batch {options.batch} sequences are not a multiple of {options.dp} ranks of dp x "
                     f"{options.microbatches} microbatches")
    if options.heads % options.tp:
        parser.error(f"--tp {options.tp} does not divide {options.heads} heads")
