"""Tests of encryption between hosts (TUTTI_ENCRYPTION): the results are the same, an observer of the network can read
nothing, and every rank gets an error if encryption is not available."""
import struct
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from across import BACKEND, failures

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
# No sum of it by two or three ranks has its bytes.
MARK = 1234.5678
REQUIRED = {"TUTTI_ENCRYPTION": "required", "TUTTI_TRANSPORT": "tcp"}
# Runs where all packets pass, and counts those that have these bytes, until its standard input ends.
WATCH = """
import select, socket, sys
mark, count = bytes.fromhex(sys.argv[1]), 0
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("ready", flush=True)
while True:
    ready = select.select([wire, sys.stdin], [], [])[0]
    if wire in ready:
        count += mark in wire.recv(65536)
    elif ready:
        break
print(count)
"""


def sums(world):
    """Runs all-reduces and all-gathers of sizes that take different paths. Returns the counts with a wrong result,
    negative for all-gathers."""
    wrong = []
    for count in (1, 100, 5_000, 20_000, 300_000, 3_000_000):
        mine = torch.full((count,), MARK)
        dist.all_reduce(mine)
        wrong += [count] if not bool((mine == torch.tensor(MARK) * world.size).all()) else []
        parts = [torch.empty(count) for _ in range(world.size)]
        dist.all_gather(parts, torch.full((count,), MARK + world.rank))
        wrong += [-count for rank, part in enumerate(parts) if not bool((part == MARK + rank).all())]
    return wrong


def count_packets_with_mark(lab, ranks):
    """Returns the number of packets that have the mark in clear text while the ranks compute."""
    mark = (struct.pack("f", MARK) * 4).hex()
    command = [*lab.hosts.entering(lab.hosts.switch.inside, "-n"), sys.executable, "-c", WATCH, mark]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout.readline() == "ready\n"
        assert ranks.run(sums) == [[]] * len(ranks.joined)
        return int(watcher.communicate()[0])


def test_no_packet_has_data_in_clear_text(fresh, lab):
    assert count_packets_with_mark(lab, fresh(0, 1, 2, environment={"TUTTI_TRANSPORT": "tcp"})) > 100
    assert count_packets_with_mark(lab, fresh(0, 1, 2, environment=REQUIRED)) == 0


def test_two_ranks_of_each_host_give_right_results(fresh):
    assert fresh(0, 0, 1, 1, environment=REQUIRED).run(sums) == [[]] * 4


def test_encryption_on_some_ranks_only_is_an_error_on_all(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_TRANSPORT": "tcp"},
                     on_host={1: REQUIRED}).joined
    failures(outcomes, "MismatchError", "rank 1 encrypts", "TUTTI_ENCRYPTION must be the same on all ranks")


def test_transport_without_encryption_is_an_error(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10,
                     environment={"TUTTI_TRANSPORT": "ucx", "TUTTI_ENCRYPTION": "required"}).joined
    failures(outcomes, "NotImplementedError", "TUTTI_TRANSPORT=ucx: only tcp can be encrypted")


def test_host_without_openssl_is_an_error_on_all(fresh):
    """Every rank gets an error that says what to install."""
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment=REQUIRED,
                     on_host={1: {"TUTTI_OPENSSL": "/nowhere/libssl.so.3"}}).joined
    failures(outcomes, "NotImplementedError", "needs OpenSSL 3", "/nowhere/libssl.so.3", "libssl3")


def test_invalid_value_of_the_setting_is_an_error(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_ENCRYPTION": "on"}).joined
    failures(outcomes, "ValueError", 'TUTTI_ENCRYPTION is "on": it must be required, or empty')
