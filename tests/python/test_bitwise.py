"""Tests that sums through torch have the same bits on every path: with each algorithm, size of tiles and number of
slots, with tensors in private or shared memory at any offset, blocking or not. The reference adds in the order of the
ranks (arithmetic.py). test_properties.py draws types, operations, layouts and programs at random; here messages are
large and take every path."""
import functools

import numpy
import pytest
import torch
import torch.distributed as dist
import torch_tutti as tutti
from arithmetic import narrowed, raw, reduced

CUTS = [{}, {"TUTTI_TILE_BYTES": "4096", "TUTTI_SLOTS": "8"},
        {"TUTTI_TILE_BYTES": "65536", "TUTTI_SLOTS": "1", "TUTTI_STREAMING": "1"}]
DTYPES = ["float32", "float16", "bfloat16"]
# Elements: within a cache line, around the bounds of tiles and rounds, and more than all slots hold.
COUNTS = [12, 2052, 16380, 16392, 150_000]
ALGORITHMS = {"all_reduce": ["", "one_shot", "two_shot", "two_shot_read"], "reduce": ["", "read", "two_shot_read"],
              "reduce_scatter_tensor": ["", "read"]}


@functools.cache
def numbers(rank, dtype, count):
    """Returns the input of a rank: numbers of many magnitudes. From rank 1 on, half of them cancel one of an earlier
    rank."""
    # All ranks draw the same numbers.
    of = numpy.random.default_rng([7, count])
    exponents = of.integers(3, 14, count)
    parts = []
    for r in range(rank + 1):
        fresh = of.uniform(-2, 2, count) * 2.0 ** (exponents - of.choice([0, 22, 25], count))
        before = parts[r - 1 - int(r > 1 and of.integers(2))] if r else fresh
        parts.append(numpy.where((of.integers(2, size=count) == 1) & (r > 0), -before, fresh))
    return torch.from_numpy(parts[rank]).to(getattr(torch, dtype))


def placed(values, shared, skipped):
    """Returns a copy in shared or private memory that begins `skipped` elements after its allocation."""
    make = tutti.empty if shared else torch.empty
    return make(len(values) + skipped, dtype=values.dtype)[skipped:].copy_(values)


def bits_of_sums(world, kind, algorithm, dtype, count):
    """Returns the bytes of this rank's results, by (placement of the tensors, whether the call blocks)."""
    values, results = numbers(world.rank, dtype, count), {}
    for number, placement in enumerate(["private", "shared", "mixed"]):
        shared = placement == "shared" or (placement == "mixed" and world.rank % 2 == 0)
        for waits in (True, False):
            x, part = placed(values, shared, 1 + number), len(values) // world.size
            out = placed(values[:part], shared, 3) if kind == "reduce_scatter_tensor" else x
            tensors = (x, 1) if kind == "reduce" else (out, x) if out is not x else (x,)
            with tutti.options(algorithm=algorithm):
                work = getattr(dist, kind)(*tensors, async_op=not waits)
            if not waits:
                work.wait()
            results[placement, waits] = raw(out).tobytes()
    return results


@functools.cache
def bits_of_total(dtype, count, size):
    return reduced([raw(numbers(rank, dtype, count)) for rank in range(size)], dtype, "SUM").tobytes()


def bits_wanted(kind, dtype, count, size, rank):
    total = bits_of_total(dtype, count, size)
    part = len(total) // size
    return total[rank * part:(rank + 1) * part] if kind == "reduce_scatter_tensor" else total


@pytest.mark.one_host("between hosts, sums are in another order, which test_properties.py checks")
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.get("TUTTI_TILE_BYTES", "default"))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_have_the_same_bits_on_every_path(fresh, size, cut):
    ranks = fresh(size, environment=cut)
    for kind, algorithms in ALGORITHMS.items():
        for dtype in DTYPES:
            for count in COUNTS:
                wanted = [bits_wanted(kind, dtype, count, size, rank) for rank in range(size)]
                for algorithm in algorithms:
                    for rank, results in enumerate(ranks.run(bits_of_sums, kind, algorithm, dtype, count)):
                        if kind == "reduce" and rank != 1:
                            continue
                        wrong = [way for way, got in results.items() if got != wanted[rank]]
                        assert not wrong, (kind, algorithm, dtype, count, f"rank {rank} of {size}", wrong)


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_order_would_be_seen(dtype):
    parts = [raw(numbers(rank, dtype, COUNTS[-1])) for rank in range(3)]
    differs = reduced(parts, dtype, "SUM") != reduced(parts[::-1], dtype, "SUM")
    assert differs.mean() > 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_another_precision_would_be_seen(dtype):
    parts = [numbers(rank, dtype, COUNTS[-1]) for rank in range(3)]
    rounded_twice = raw(parts[0] + parts[1] + parts[2])
    rounded_once = narrowed(sum(part.to(torch.float32).numpy() for part in parts), dtype)
    assert (rounded_twice != rounded_once).mean() > 0.01
