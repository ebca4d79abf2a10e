"""Measures the sum of a row-parallel layer, the residual connection and the norm after it: fused in one operation,
separately one after the other, and the sum alone; on tutti, gloo, and DeepSpeed's shared memory where DeepSpeed is
installed. Then it measures a decode loop of a whole model.

    torchrun --standalone --nproc-per-node 2 tests/bench/bench_norm.py
    TORCH_EXTENSIONS_DIR=build/frameworks/extensions build/frameworks/bin/python -m torch.distributed.run \\
        --standalone --nproc-per-node 2 tests/bench/bench_norm.py               beside DeepSpeed

All ways take turns. A call lasts from the last rank's arrival to the last rank's return. Figures are medians, in
microseconds, and their ratios. Between two calls a layer multiplies, as in bench_decode.py.

The model has layers of attention with a KV cache, and gated MLPs. Its weights are random, in float32 or bfloat16, and
divided over the ranks as in Megatron. Figures are the time of a token, the medians over turns.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

import torch_tutti
from bench_decode import Layers, deepspeed_shared_memory, join, measure, table

KIB = [8, 16, 32, 64, 128, 256]
COLUMNS = 2048
# Takes this rank's part of the sum, the residual, this rank's rows of the residual, and the norm's weight. Returns the
# normalised rows.
After = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


# ---- what is measured ----
def fused(x: torch.Tensor, residual: torch.Tensor, mine: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch_tutti.all_reduce_norm(x, weight, residual=residual)
    return x


def fused_own_rows(x: torch.Tensor, residual: torch.Tensor, mine: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch_tutti.all_reduce_norm(x, weight, residual=mine, own_rows=True)
    return x


def after(reduce: Callable[[torch.Tensor], object]) -> After:
    def separate(x: torch.Tensor, residual: torch.Tensor, mine: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        reduce(x)
        residual += x
        return rms_norm(residual, weight.shape, weight, 1e-6)
    return separate


def all_ways() -> dict[str, After]:
    gloo = dist.new_group(backend="gloo")
    ways = {"fused": fused, "fused, own rows": fused_own_rows, "separate": after(torch_tutti.all_reduce),
            "gloo": after(lambda x: dist.all_reduce(x, group=gloo))}
    theirs = deepspeed_shared_memory()
    if callable(theirs):
        ways["DeepSpeed"] = after(theirs)
    elif dist.get_rank() == 0:
        print(f"without DeepSpeed: {theirs}")
    return ways


# ---- one call ----
def run_turn(layers: Layers, way: After, count: int) -> list[tuple[float, float]]:
    now, stamps = time.perf_counter, []
    rows = layers.tensor.view(-1, COLUMNS)
    residual, weight = torch.zeros_like(rows), torch.ones(COLUMNS, dtype=rows.dtype)
    mine = residual[torch_tutti.norm_rows(len(rows))]
    torch_tutti.all_reduce(torch.zeros(1))
    for layer in range(count):
        layers.compute(layer)
        begin = now()
        way(rows, residual, mine, weight)
        stamps.append((begin, now()))
    return stamps


# ---- a model that decodes ----
class Model:
    """The part of a model on this rank: heads and columns are divided over the ranks."""

    def __init__(self, layers: int, width: int, heads: int, context: int, batch: int, dtype: torch.dtype):
        ranks, draw = dist.get_world_size(), torch.Generator().manual_seed(7)

        def weights(*shape: int) -> torch.Tensor:
            return (torch.randn(shape, generator=draw) / shape[-1] ** 0.5).to(dtype)
        self.head, self.mine, self.width, self.dtype = width // heads, heads // ranks, width, dtype
        part = width // ranks
        self.layers = [{"qkv": weights(3 * part, width), "out": weights(width, part), "up": weights(8 * part, width),
                        "down": weights(width, 4 * part), "norms": [torch.ones(width, dtype=dtype) for _ in "ab"],
                        "cache": weights(2, batch, self.mine, context, self.head)} for _ in range(layers)]
        self.first = torch.ones(width, dtype=dtype)

    def decode(self, token: torch.Tensor, way: After) -> torch.Tensor:
        """Returns the output of the model for a token of each sequence, [batch, width], equal on all ranks."""
        residual, x = token.clone(), rms_norm(token, (self.width,), self.first, 1e-6)
        batch, mine = len(token), residual[torch_tutti.norm_rows(len(token))]
        for layer in self.layers:
            q, k, v = linear(x, layer["qkv"]).view(batch, 3, self.mine, 1, self.head).unbind(1)
            layer["cache"][0, :, :, -1:], layer["cache"][1, :, :, -1:] = k, v
            seen = scaled_dot_product_attention(q, *layer["cache"])
            x = way(linear(seen.view(batch, -1), layer["out"]), residual, mine, layer["norms"][0])
            gate, up = linear(x, layer["up"]).chunk(2, -1)
            x = way(linear(silu(gate) * up, layer["down"]), residual, mine, layer["norms"][1])
        return x


def decode_times(model: Model, ways: dict[str, After], batch: int, tokens: int, turns: int) -> dict[str, float]:
    """Returns, by way, the median milliseconds for a token of each sequence, on the slowest rank."""
    taken = {name: [] for name in ways}
    token = torch.ones(batch, model.width, dtype=model.dtype)
    results = {name: model.decode(token, way).float() for name, way in ways.items()}
    for name, result in results.items():
        assert torch.allclose(result, results["separate"], rtol=0.1, atol=0.1), name
    for _ in range(turns):
        for name, way in ways.items():
            torch_tutti.all_reduce(torch.zeros(1))
            begin = time.perf_counter()
            for _ in range(tokens):
                model.decode(token, way)
            taken[name].append((time.perf_counter() - begin) / tokens * 1e3)
    slowest = torch.tensor([statistics.median(values) for values in taken.values()])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return dict(zip(taken, slowest.tolist()))


# ---- what is shown ----
def calls(options: argparse.Namespace, ways: dict[str, After], dtype: torch.dtype) -> None:
    alone = {"sum alone": lambda x, residual, mine, weight: torch_tutti.all_reduce(x)}
    medians = {kib: measure({**ways, **alone}, kib << 10, dtype, options.turns, options.calls, run_turn)
               for kib in KIB}
    heads = [*ways, *alone, "fused / sum alone", "separate / fused"]
    rows = {kib: [*row.values(), row["fused"] / row["sum alone"], row["separate"] / row["fused"]]
            for kib, row in medians.items()}
    if dist.get_rank() == 0:
        table(f"{str(dtype).removeprefix('torch.')}, rows of {COLUMNS}, us", "KiB", heads, rows)


def decoding(options: argparse.Namespace, ways: dict[str, After], dtype: torch.dtype) -> None:
    rows = {}
    for batch in 1, 4, 16:
        model = Model(options.layers, options.width, options.width // 64, options.context, batch, dtype)
        times = decode_times(model, ways, batch, options.tokens, options.turns)
        rows[batch] = [*times.values(), *(times[name] / times["fused"] for name in times if name != "fused")]
    heads = [*ways, *(f"{name} / fused" for name in ways if name != "fused")]
    if dist.get_rank() == 0:
        kind = str(dtype).removeprefix("torch.")
        table(f"{options.layers} layers of {options.width}, {kind}: ms for a token of each sequence", "batch", heads,
              rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual, what in (("turns", 6, "turns of each way"),
                              ("calls", 200, "calls in a turn; slow ways make fewer"),
                              ("layers", 12, "layers of the model"), ("width", 1024, "columns of the model"),
                              ("context", 128, "tokens in the cache"), ("tokens", 10, "decoded tokens of a turn")):
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"{what} (default %(default)s)")
    options = parser.parse_args()
    join("fused norms")
    ways = all_ways()
    with torch.no_grad():
        for dtype in torch.float32, torch.bfloat16:
            calls(options, ways, dtype)
        for dtype in torch.float32, torch.bfloat16:
            decoding(options, ways, dtype)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
