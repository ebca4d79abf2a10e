"""Measures the way of tokens to their experts and back, forward only, and forward and backward: torch_tutti.experts in
common memory and by messages, beside the usual code by hand: sort by index_select, all_to_all_single, index_select into
the order of experts, and the same back, on tutti and gloo. Then it measures a decode step: a few tokens, in one round
each way.

    torchrun --standalone --nproc-per-node 4 tests/bench/bench_experts.py

Over several hosts (TUTTI_HOSTS=2 simulates two) it measures what messages between all ranks take, too, and decodes
nothing. All ways take turns. A call lasts from a common start to the last rank's return. Figures are medians, and their
ratios to the first one. Experts compute nothing, so only the way there and back is measured.
"""

import argparse
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

from steps import measure, median_ms
from torch_tutti import experts
from torch_tutti.experts._pool import shared_of

# A way takes the tokens, their weights and the chosen experts, and returns the tokens that come back.
Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


# ---- what is measured ----
def ours(dispatcher: experts.Dispatcher) -> Way:
    def way(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        batch = dispatcher.dispatch(x, chosen)
        return dispatcher.combine(batch.tokens, weights, batch)
    return way


class Exchange(torch.autograd.Function):
    """all_to_all_single with a gradient."""

    @staticmethod
    def forward(ctx, rows, comes, sends, group):
        ctx.of = sends, comes, group
        out = rows.new_empty(sum(comes), rows.shape[1])
        dist.all_to_all_single(out, rows, comes, sends, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        comes, sends, group = ctx.of
        out = grad.new_empty(sum(comes), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), comes, sends, group=group)
        return out, None, None, None


def by_hand(of: int, group: dist.ProcessGroup | None) -> Way:
    ranks = dist.get_world_size(group)

    def way(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=of)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=group)
        sends, comes = counts.view(ranks, -1).sum(1).tolist(), theirs.view(ranks, -1).sum(1).tolist()
        rows = Exchange.apply(x.index_select(0, order // chosen.shape[1]), comes, sends, group)
        expert = torch.arange(of // ranks).repeat(ranks).repeat_interleave(theirs)
        to_experts = expert.argsort(stable=True)
        # Experts would compute on these rows.
        rows = rows.index_select(0, to_experts)
        back = torch.empty_like(to_experts)
        back[to_experts] = torch.arange(len(back))
        rows = Exchange.apply(rows.index_select(0, back), sends, comes, group)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(place))
        rows = rows.index_select(0, place).view(*chosen.shape, -1)
        return (rows * weights.to(rows.dtype)[..., None]).sum(1)
    return way


class ByMessages(experts.Dispatcher):
    """Sends rows between all ranks by all_to_all_single."""

    def _memory(self) -> None:
        return None


def all_ways(of: int) -> dict[str, Way]:
    gloo = dist.new_group(backend="gloo")
    between_all = {"by messages": ours(ByMessages(of))} if hosts() > 1 else {}
    return {"experts": ours(experts.Dispatcher(of)), **between_all, "by hand, tutti": by_hand(of, None),
            "experts on gloo": ours(experts.Dispatcher(of, gloo)), "by hand, gloo": by_hand(of, gloo)}


def hosts() -> int:
    return shared_of(dist.group.WORLD).hosts.count


# ---- one after the other ----
def medians(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Returns, by way, the median milliseconds from a common start to the end of the slowest rank."""
    return {name: median_ms(samples) for name, samples in measure(ways, turns, warm=2).items()}


def draw(tokens: int, columns: int, of: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(tokens, columns, generator=generator).to(dtype)
    weights, chosen = experts.route(torch.randn(tokens, of, generator=generator), k)
    return x, weights, chosen


def forwards(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    x, weights, chosen = draw(tokens, options.columns, options.experts, options.choices, options.dtype)
    ways = {name: lambda way=way: way(x, weights, chosen) for name, way in all_ways(options.experts).items()}
    with torch.no_grad():
        results = [way().float() for way in ways.values()]
        assert all(torch.allclose(result, results[0], rtol=5e-2, atol=5e-2) for result in results)
        return medians(ways, options.turns)


def with_backward(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    x, weights, chosen = draw(tokens, options.columns, options.experts, options.choices, options.dtype)
    x.requires_grad_(), weights.requires_grad_()
    grad = torch.ones_like(x)

    def train(way: Way) -> None:
        x.grad = weights.grad = None
        way(x, weights, chosen).backward(grad)
    return medians({name: lambda way=way: train(way) for name, way in all_ways(options.experts).items()}, options.turns)


def decoding(options: argparse.Namespace, tokens: int) -> dict[str, float]:
    x, weights, chosen = draw(tokens, options.columns, options.experts, options.choices, options.dtype)
    decoder = experts.Decoder(options.experts, options.columns, tokens, dtype=options.dtype)

    def decode() -> torch.Tensor:
        decoder.dispatch(x, chosen)
        return decoder.combine(decoder.outputs, weights)
    with torch.no_grad():
        ways = {name: lambda way=way: way(x, weights, chosen) for name, way in all_ways(options.experts).items()}
        return medians({"Decoder": decode, **ways}, options.turns * 10)


def show(title: str, times: dict[str, float]) -> None:
    if dist.get_rank():
        return
    first, *_ = times.values()
    print(f"\n{title}")
    for name, value in times.items():
        print(f"  {name:<16}{value:>10.3f} ms{value / first:>8.2f}", flush=True)


def draw_picture(file: str, shown: dict[str, dict[str, float]]) -> None:
    """Draws a group of bars for each measurement: times divided by that of the first way."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    names = list(next(iter(shown.values())))
    for place, name in enumerate(names):
        heights = [times[name] / times[names[0]] for times in shown.values()]
        bars = axes.bar([group + place / (len(names) + 1) for group in range(len(shown))], heights,
                        1 / (len(names) + 1), label=name)
        axes.bar_label(bars, [f"{height:.1f}" for height in heights], fontsize=7)
    axes.set_xticks([group + 0.3 for group in range(len(shown))], [title.replace(", ", ",\n") for title in shown],
                    fontsize=8)
    axes.set_ylabel("time, by that of experts")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual, what in (("tokens", 4096, "tokens of a rank"), ("columns", 1024, "columns of a token"),
                              ("experts", 16, "experts on all ranks"), ("choices", 2, "experts of a token"),
                              ("turns", 15, "turns of each way")):
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"{what} (default %(default)s)")
    parser.add_argument("--dtype", type=lambda name: getattr(torch, name), default=torch.bfloat16)
    parser.add_argument("--picture", metavar="FILE", help="draw the times into FILE, except those of decoding")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    if dist.get_rank() == 0:
        print(f"experts, torch {torch.__version__}, {dist.get_world_size()} ranks, {len(os.sched_getaffinity(0))} "
              f"cores, load {os.getloadavg()[0]:.1f}: {options.columns} x {options.dtype}, {options.choices} of "
              f"{options.experts} experts")
    shown = {}
    for tokens in options.tokens // 4, options.tokens:
        for name, run in ("forward", forwards), ("forward and backward", with_backward):
            title = f"{tokens} tokens of a rank, {name}"
            shown[title] = run(options, tokens)
            show(title, shown[title])
    for tokens in (1, 16, 64) if hosts() == 1 else ():
        show(f"{tokens} tokens of a rank, decoded", decoding(options, tokens))
    if options.picture and dist.get_rank() == 0:
        draw_picture(options.picture, shown)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
