"""Tests of the bytes that large collectives send between hosts, counted by the interfaces: little more than the least
that is possible, however many ranks a host has. Counts are not times, so a busy machine hardly changes them."""
import time

import pytest
import torch
import torch.distributed as dist
from across import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="these are promises of tutti")
PLACEMENTS = {"two hosts": (0, 1), "two ranks each": (0, 0, 1, 1), "round robin": (0, 1, 0, 1),
              "four hosts": (0, 1, 2, 3)}
BYTES, TIMES = 1 << 24, 3
HEADERS = 66            # Ethernet, IPv4, and TCP with its timestamps: of a packet, which here may be of 64 KiB
SEGMENT = 1448          # what TCP counts when it sends again: up to so many bytes
COUNTERS = ("/sys/class/net/eth0/statistics/tx_bytes", "/sys/class/net/eth0/statistics/tx_packets", "/proc/net/snmp")
# Measured: 1.000 to 1.004 of the least without headers, 1.001 to 1.008 with them. It is what announces, fetches and
# acknowledges messages. What TCP sends again, on a busy machine up to a megabyte, does not count. What sends a part of
# the tensor twice, or as often as a host has ranks, is at 1.33 or above.
LIMIT = 1.02


def least(what, hosts, of_each):
    """Returns the least that the busiest host must send, as a multiple of a rank's tensor. Each host has to receive the
    results or the data of the others. Data that two ranks of a host need travel once, except in an all_to_all, where no
    two ranks need the same. of_each: the ranks of a host."""
    others = (hosts - 1) / hosts
    return {"all_reduce": 2 * others, "reduce_scatter": others, "all_gather": others, "broadcast": 1,
            "all_to_all": of_each * others}[what]


def repeat(world, what, times):
    whole, result = torch.ones(BYTES // 4), torch.empty(BYTES // 4)
    part = torch.ones(BYTES // 4 // world.size)
    for _ in range(times):
        {"all_reduce": lambda: dist.all_reduce(whole),
         "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole),
         "all_gather": lambda: dist.all_gather_single(result, part),
         "broadcast": lambda: dist.broadcast(whole, 0),
         "all_to_all": lambda: dist.all_to_all_single(result, whole)}[what]()


def counted(words):
    """From what COUNTERS say: two figures, then names of Tcp's with its figures below them."""
    names = words.index("Tcp:")
    figures = words.index("Tcp:", names + 1)
    return int(words[0]), int(words[1]), int(words[words.index("RetransSegs", names) + figures - names])


def sent(some, hosts):
    """Bytes and packets that each of them has sent until now, and segments that TCP has sent again."""
    return [counted(some.on_host(host, *(f"cat {path}" for path in COUNTERS)).split()) for host in range(hosts)]


def sent_meanwhile(ranks, hosts, what):
    """Bytes that each host sends for one such operation: once and without headers, and all."""
    ranks.run(repeat, what, 1)                          # connections are made, memory is registered
    before = sent(ranks.lab.hosts, hosts)
    ranks.run(repeat, what, TIMES)
    time.sleep(0.1)                                     # acknowledgements may be late
    after = sent(ranks.lab.hosts, hosts)
    grown = [[n - t for n, t in zip(now, then)] for now, then in zip(after, before)]
    once = [count - HEADERS * packets - SEGMENT * again for count, packets, again in grown]
    return [count / TIMES for count in once], [count / TIMES for count, _, _ in grown]


@pytest.mark.parametrize("what", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_no_more_is_sent_than_must_be(ranks, placement, what):
    hosts = len(set(placement))
    bare, whole = sent_meanwhile(ranks(*placement), hosts, what)
    optimum = BYTES * least(what, hosts, len(placement) // hosts)
    text = f"{max(bare) / optimum:.4f} of the least, all in all {max(whole) / optimum:.4f}"
    print(f"{what} {placement}: {text}")
    assert 0.99 * optimum < max(bare) < LIMIT * optimum, text
