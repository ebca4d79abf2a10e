"""Tests of failures over several hosts, real or apparent: of processes, hosts, cables, firewalls, settings. After a
real one every survivor gets an error with the lost rank or host, within the limits of backend/links/links.h
(TUTTI_PEER_TIMEOUT_MS for a host that sends nothing). After an apparent one the group goes on. The limits that are
checked here are long enough for a busy machine."""
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from across import BACKEND, failures

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
PEER_TIMEOUT_MS = 3000
# The seconds in which ranks must get an error: after the death of a process, which is reported at once, and after the
# loss of a host, which is noticed after PEER_TIMEOUT_MS.
SOON_S, AFTER_TIMEOUT_S = 10, 20
BLOCKS = (0, 0, 1, 1)
QUICK = {"environment": {"TUTTI_PEER_TIMEOUT_MS": str(PEER_TIMEOUT_MS)}}


def until_it_fails(world, what="all_reduce"):
    """Makes sums, which must be right, until an error ends them. Returns the class, the text and the time of the
    error."""
    parts = {"all_reduce": 1000, "large": 1 << 20}
    try:
        while True:
            if what == "recv" and world.rank != 0:
                time.sleep(1000)
            if what == "recv":
                dist.recv(torch.empty(1), world.size - 1)
                continue
            total = torch.full((parts[what],), world.rank + 1.0)
            dist.all_reduce(total)
            assert bool((total == world.size * (world.size + 1) / 2).all()), "a wrong sum"
    except dist.DistBackendError as error:
        return type(error).__name__, str(error), time.monotonic()


def blamed(some, ranks, begin, victims, seconds):
    """Asserts that these ranks get a PeerError that names a victim and its host, within `seconds` after `begin`."""
    for rank, outcome in zip(ranks, some.collect(seconds + 20, ranks)):
        assert not outcome.failed, f"rank {rank}: {outcome.trace or outcome.died}"
        kind, text, at = outcome.value
        assert kind == "PeerError", f"rank {rank}: {kind}: {text}"
        assert any(f"rank {victim}" in text for victim in victims), f"rank {rank}: {text}"
        assert any(f"h{some.placement[victim]}" in text for victim in victims), f"rank {rank}: {text}"
        assert at - begin < seconds, f"rank {rank} got the error after {at - begin:.1f} s: {text}"


def running(some, what="all_reduce", seconds=0.5):
    """Starts until_it_fails on all ranks, and returns the time after some seconds."""
    some.begin(until_it_fails, what)
    time.sleep(seconds)
    return time.monotonic()


# ---- processes ----
@pytest.mark.parametrize("what", ["all_reduce", "large"])
@pytest.mark.parametrize("victim", [3, 1, 0])
@pytest.mark.parametrize("transport", ["tcp", "ucx", "tcp,ucx"])
def test_killed_rank_is_named_on_every_host(fresh, transport, victim, what):
    """Rank 0 has the store, which the other ranks do not need after joining."""
    some = fresh(*BLOCKS, environment={"TUTTI_TRANSPORT": transport})
    begin = running(some, what)
    some.signal(victim, signal.SIGKILL)
    survivors = [rank for rank in range(4) if rank != victim]
    blamed(some, survivors, begin, [victim], SOON_S)


def test_killed_rank_is_named_by_a_rank_that_waits_for_its_message(fresh):
    some = fresh(0, 1)
    begin = running(some, "recv")
    some.signal(1, signal.SIGKILL)
    blamed(some, [0], begin, [1], SOON_S)


@pytest.mark.parametrize("host", [0, 1])
def test_survivors_name_a_rank_of_a_host_whose_ranks_are_killed(fresh, host):
    some = fresh(*BLOCKS)
    begin = running(some)
    victims = [rank for rank in range(4) if BLOCKS[rank] == host]
    for rank in victims:
        some.signal(rank, signal.SIGKILL)
    blamed(some, [rank for rank in range(4) if rank not in victims], begin, victims, SOON_S)


def test_stopped_rank_is_not_taken_for_dead(fresh):
    """The rank is stopped for longer than the peer timeout, but its kernel still answers."""
    some = fresh(*BLOCKS, environment={"TUTTI_PEER_TIMEOUT_MS": "1000"})
    some.begin(sums_for, 12)
    time.sleep(1)
    some.signal(3, signal.SIGSTOP)
    time.sleep(8)
    some.signal(3, signal.SIGCONT)
    outcomes = some.collect(60)
    assert [outcome.value for outcome in outcomes] == ["right"] * 4, outcomes


def sums_for(world, seconds):
    until = time.monotonic() + seconds
    while True:
        go_on = torch.tensor([float(time.monotonic() < until), 1.0])
        dist.all_reduce(go_on)
        assert go_on[1] == world.size
        if go_on[0] < world.size:
            return "right"


# ---- the network ----
@pytest.mark.parametrize("what", ["all_reduce", "large", "recv"])
def test_host_without_network_is_lost(fresh, lab, what):
    """The cable is pulled while the host sends and receives small or large tensors, or while a rank waits for a
    message."""
    some = fresh(0, 0, 1, 1, **QUICK)
    begin = running(some, what)
    lab.hosts.link(1, False)
    try:
        on_0, on_1 = ([0], []) if what == "recv" else ([0, 1], [2, 3])
        blamed(some, on_0, begin, [2, 3], AFTER_TIMEOUT_S)
        blamed(some, on_1, begin, [0, 1], AFTER_TIMEOUT_S)
    finally:
        lab.hosts.link(1, True)
    if what == "recv":
        for rank in (1, 2, 3):
            some.signal(rank, signal.SIGKILL)


# The timeout of a group. It ends before a link is given up, which is an error, too.
HASTY_S = 2


def hasty(world):
    dist.group.WORLD.set_timeout(timedelta(seconds=HASTY_S))
    return until_it_fails(world)


@pytest.mark.parametrize("transport, ports", [("ucx", (17000, 17099)), ("tcp", (1024, 65535))])
def test_unanswered_connection_ends_after_the_timeout_of_the_group(fresh, lab, transport, ports):
    """The first operation's connection gets no answer, as when a cable is pulled just then. A kernel retries for two
    minutes, but the ranks get an error after the timeout of the group."""
    some = fresh(*BLOCKS, environment={"TUTTI_TRANSPORT": transport, "UCX_TCP_PORT_RANGE": "17000-17099"})
    lab.hosts.close_ports(1, ports)
    try:
        begin = time.monotonic()
        some.begin(hasty)
        for rank, outcome in enumerate(some.collect(SOON_S + 20)):
            assert not outcome.failed, f"rank {rank}: {outcome.trace or outcome.died}"
            kind, text, at = outcome.value
            assert kind == "TimeoutError", f"rank {rank}: {kind}: {text}"
            assert at - begin < HASTY_S + SOON_S, f"rank {rank} got the error after {at - begin:.1f} s: {text}"
    finally:
        lab.hosts.plain(1)


def test_group_survives_a_short_break_of_the_network(fresh, lab):
    some = fresh(*BLOCKS)
    some.begin(sums_for, 4)
    time.sleep(1)
    lab.hosts.link(1, False)
    time.sleep(1)
    lab.hosts.link(1, True)
    assert [outcome.value for outcome in some.collect(60)] == ["right"] * 4


def test_group_survives_loss_and_delay(fresh, lab):
    lab.hosts.shape(1, delay="2ms", loss="1%")
    try:
        some = fresh(*BLOCKS)
        some.begin(sums_for, 4)
        assert [outcome.value for outcome in some.collect(60)] == ["right"] * 4
    finally:
        lab.hosts.shape(1)


def message_ns(world):
    from torch_tutti._model._core import machine_parameters
    core = dist.group.WORLD._get_backend(torch.device("cpu"))
    return machine_parameters(core)["figures"]["message"]["value"]


def test_link_cost_includes_the_delay_of_the_network(fresh, lab):
    # The delay is in one direction, so half a round trip takes 10 ms.
    lab.hosts.shape(1, delay="20ms")
    try:
        values = fresh(0, 1).run(message_ns)
    finally:
        lab.hosts.shape(1)
    assert values[0] == values[1] >= 9e6


# ---- joining ----
def test_error_of_a_firewall_names_both_hosts(fresh, lab):
    """All hosts reach the store on h0, but h1 and h2 do not reach each other."""
    lab.hosts.swallow(1, 2)
    try:
        outcomes = fresh(0, 1, 2, joined=False, timeout_s=6).joined
    finally:
        lab.hosts.swallow(1, 2, False)
    assert {outcome.error for outcome in outcomes} <= {"TimeoutError", "PeerError"}, outcomes
    texts = [outcome.text for outcome in outcomes]
    assert any("h1" in text and "h2" in text for text in texts), texts
    assert any(re.search("firewall|TUTTI_SOCKET_IFNAME", text) for text in texts), texts


def test_unknown_interface_is_an_error_with_the_known_ones(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_SOCKET_IFNAME": "nothing0"}).joined
    failures(outcomes, "ValueError", "TUTTI_SOCKET_IFNAME=nothing0", "eth0 (10.77.0.")


def test_interface_that_one_host_lacks_is_an_error_on_all(fresh):
    """All ranks get the error at once, without waiting for the timeout."""
    for odd in (1, 0):
        outcomes = fresh(0, 1, joined=False, timeout_s=60, on_host={odd: {"TUTTI_SOCKET_IFNAME": "nothing0"}}).joined
        failures(outcomes, "ValueError", "TUTTI_SOCKET_IFNAME=nothing0", "eth0 (10.77.0.")
        assert f"rank {odd} (process " in outcomes[1 - odd].text and f"on h{odd}" in outcomes[1 - odd].text, outcomes


def test_interface_can_be_chosen(fresh):
    some = fresh(0, 1, environment={"TUTTI_SOCKET_IFNAME": "=eth0"})
    assert [outcome.failed for outcome in some.joined] == [False, False]


def test_ranks_with_different_group_sizes_get_an_error(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=6, sizes={"1": 3}).joined
    assert all(outcome.error in ("MismatchError", "TimeoutError") for outcome in outcomes), outcomes
    assert any("3" in outcome.text for outcome in outcomes), outcomes


def test_simulated_hosts_over_several_hosts_are_an_error(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_HOSTS": "2"}).joined
    failures(outcomes, "ValueError", "TUTTI_HOSTS", "h0", "h1", "unset")


def test_different_transports_are_an_error_on_all(fresh):
    """Ranks with different transports, as when only one host has RDMA, get an error that names both and the remedy."""
    outcomes = fresh(0, 1, joined=False, timeout_s=10, on_host={1: {"TUTTI_TRANSPORT": "ucx"}}).joined
    failures(outcomes, "MismatchError", "rank 1", "by ucx", "by tcp", "set TUTTI_TRANSPORT", "RDMA")
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_TRANSPORT": "tcp,ucx"},
                     on_host={1: {"TUTTI_TRANSPORT": "ucx"}}).joined
    failures(outcomes, "MismatchError", "rank 1", "by ucx,", "by ucx and tcp:")


@pytest.mark.parametrize("transport", ["ucx", "tcp,ucx"])
def test_host_without_ucx_is_an_error_on_all(fresh, transport):
    """The error of that host has the path of the missing library, and that of the other host names the rank."""
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_TRANSPORT": transport},
                     on_host={1: {"TUTTI_UCX": "/nowhere/libucp.so.0"}}).joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert outcomes[1].error == "NotImplementedError" and "/nowhere/libucp.so.0" in outcomes[1].text, outcomes[1].text
    assert "rank 1" in outcomes[0].text, outcomes[0].text


def test_ranks_with_different_secrets_cannot_join(fresh, tmp_path):
    files = [tmp_path / name for name in ("one", "other")]
    for number, file in enumerate(files):
        file.write_text(f"secret {number}\n")
        file.chmod(0o600)
    settings = [{"TUTTI_SECRET_FILE": str(file)} for file in files]
    same = fresh(0, 1, environment=settings[0])
    assert not any(outcome.failed for outcome in same.joined)
    outcomes = fresh(0, 1, joined=False, timeout_s=6, on_host=dict(enumerate(settings))).joined
    assert all(outcome.failed for outcome in outcomes), outcomes


# ---- what goes over the network ----
def send_much(world):
    big = torch.zeros(1 << 22)
    for _ in range(4):
        dist.all_reduce(big)
    dist.barrier()


def test_job_on_one_host_sends_nothing_over_the_network(fresh, lab):
    """The interface's counters hardly grow during a job on one host; those of a job on two hosts do."""
    alone = fresh(1, 1)
    before = sum(lab.hosts.counters(1))
    alone.run(send_much)
    assert sum(lab.hosts.counters(1)) - before < 1 << 20
    both = fresh(0, 1)
    before = lab.hosts.counters(1)[1]
    both.run(send_much)
    assert lab.hosts.counters(1)[1] - before > 4 * (1 << 24) // 2
