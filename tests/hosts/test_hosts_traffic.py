"""Tests of the bytes that large collectives send between hosts, counted by the interfaces: little more than the least
possible number, with any number of ranks on a host. Counts are not times, so a busy machine hardly changes them."""
import time

import pytest
import torch
import torch.distributed as dist
from across import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
PLACEMENTS = {"two hosts": (0, 1), "two ranks each": (0, 0, 1, 1), "round robin": (0, 1, 0, 1),
              "four hosts": (0, 1, 2, 3)}
BYTES, TIMES = 1 << 24, 3
# The bytes of Ethernet, IPv4 and TCP with timestamps in each packet, which here may have 64 KiB.
HEADERS = 66
# The bytes, at most, of a segment that TCP counts as sent again.
SEGMENT = 1448
COUNTERS = ("/sys/class/net/eth0/statistics/tx_bytes", "/sys/class/net/eth0/statistics/tx_packets", "/proc/net/snmp")
# The bytes of a collective at most, as a multiple of the least possible number. Measured are 1.000 to 1.004 without
# headers and 1.001 to 1.008 with them; the surplus announces, fetches and acknowledges messages. Bytes that TCP sends
# again do not count, which are up to a megabyte on a busy machine. An algorithm that sends a part of the tensor twice,
# or once for each rank of a host, is at 1.33 or above.
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
    """Returns the bytes, the packets and the segments sent again from the words of COUNTERS: two numbers, then a line
    of names and a line of numbers of Tcp."""
    names = words.index("Tcp:")
    figures = words.index("Tcp:", names + 1)
    return int(words[0]), int(words[1]), int(words[words.index("RetransSegs", names) + figures - names])


def sent(some, hosts):
    """Returns for each host the bytes and packets that it has sent until now, and the segments that TCP has sent
    again."""
    return [counted(some.on_host(host, *(f"cat {path}" for path in COUNTERS)).split()) for host in range(hosts)]


def sent_meanwhile(ranks, hosts, what):
    """Returns the bytes that each host sends for one operation: those sent once, without headers, and all of them."""
    # The first operation makes connections and registers memory.
    ranks.run(repeat, what, 1)
    before = sent(ranks.lab.hosts, hosts)
    ranks.run(repeat, what, TIMES)
    # Acknowledgements may be late.
    time.sleep(0.1)
    after = sent(ranks.lab.hosts, hosts)
    grown = [[n - t for n, t in zip(now, then)] for now, then in zip(after, before)]
    once = [count - HEADERS * packets - SEGMENT * again for count, packets, again in grown]
    return [count / TIMES for count in once], [count / TIMES for count, _, _ in grown]


@pytest.mark.parametrize("what", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
def test_collective_sends_little_more_than_the_least(ranks, placement, what):
    hosts = len(set(placement))
    bare, whole = sent_meanwhile(ranks(*placement), hosts, what)
    optimum = BYTES * least(what, hosts, len(placement) // hosts)
    text = f"{max(bare) / optimum:.4f} of the least, all in all {max(whole) / optimum:.4f}"
    print(f"{what} {placement}: {text}")
    assert 0.99 * optimum < max(bare) < LIMIT * optimum, text
