"""Tests of tensors with more elements than fit into 32 bits."""
import pytest
import torch
import torch.distributed as dist

ELEMENTS = 2 ** 31 + 16
PLACES = (0, 2 ** 30 + 1, 2 ** 31 - 1, 2 ** 31, ELEMENTS - 1)


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def is_all(x, value):
    """Returns whether all elements have this value. Compares eight at a time."""
    low, high = torch.aminmax(x.view(torch.int64))
    return low == high == int.from_bytes(bytes([value] * 8), "little")


def check_large(world):
    x = torch.zeros(ELEMENTS, dtype=torch.int8)
    x[list(PLACES)] = world.rank + 1
    dist.all_reduce(x)
    assert x[list(PLACES)].eq(3).all()
    x[list(PLACES)] = 0
    assert is_all(x, 0)
    dist.broadcast(x.fill_(7) if world.rank == 0 else x, 0)
    assert is_all(x, 7)
    if world.rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x.fill_(0), 0)
        assert is_all(x, 7)


def test_more_elements_than_32_bits_count(fresh):
    # Bytes: the tensors of two ranks, and temporary memory for comparisons.
    needed = 3 * ELEMENTS
    if available_bytes() < needed:
        pytest.skip(f"{needed >> 20} MiB of memory are needed, {available_bytes() >> 20} MiB are available")
    fresh(2, timeout_s=300).run(check_large, limit_s=300)
