"""Tests of failures over several hosts, real or apparent: processes, hosts, cables, firewalls, settings. After a real
one every survivor gets an error with the lost rank or host, within the limits of backend/links/links.h
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

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="these are promises of tutti")
SILENCE_MS = 3000
SOON_S, AFTER_SILENCE_S = 10, 20                        # a death is told; silence lasts SILENCE_MS before it counts
BLOCKS = (0, 0, 1, 1)
QUICK = {"environment": {"TUTTI_PEER_TIMEOUT_MS": str(SILENCE_MS)}}


def until_it_fails(world, what="all_reduce"):
    """Sums that must be right, for ever; the text and the time of the error."""
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
    """All of these ranks have a PeerError that names a victim and its host."""
    for rank, outcome in zip(ranks, some.collect(seconds + 20, ranks)):
        assert not outcome.failed, f"rank {rank}: {outcome.trace or outcome.died}"
        kind, text, at = outcome.value
        assert kind == "PeerError", f"rank {rank}: {kind}: {text}"
        assert any(f"rank {victim}" in text for victim in victims), f"rank {rank}: {text}"
        assert any(f"h{some.placement[victim]}" in text for victim in victims), f"rank {rank}: {text}"
        assert at - begin < seconds, f"rank {rank} heard of it after {at - begin:.1f} s: {text}"


def running(some, what="all_reduce", seconds=0.5):
    """They have begun, and some time has passed."""
    some.begin(until_it_fails, what)
    time.sleep(seconds)
    return time.monotonic()


# ---- processes ----
@pytest.mark.parametrize("what", ["all_reduce", "large"])
@pytest.mark.parametrize("victim", [3, 1, 0])
@pytest.mark.parametrize("transport", ["tcp", "ucx", "tcp,ucx"])
def test_killed_rank_is_named_on_every_host(fresh, transport, victim, what):
    """Rank 0 has the store: nobody needs it after joining."""
    some = fresh(*BLOCKS, environment={"TUTTI_TRANSPORT": transport})
    begin = running(some, what)
    some.signal(victim, signal.SIGKILL)
    survivors = [rank for rank in range(4) if rank != victim]
    blamed(some, survivors, begin, [victim], SOON_S)


def test_killed_rank_is_named_by_who_waits_for_its_message(fresh):
    some = fresh(0, 1)
    begin = running(some, "recv")
    some.signal(1, signal.SIGKILL)
    blamed(some, [0], begin, [1], SOON_S)


@pytest.mark.parametrize("host", [0, 1])
def test_all_ranks_of_a_host_are_killed(fresh, host):
    some = fresh(*BLOCKS)
    begin = running(some)
    victims = [rank for rank in range(4) if BLOCKS[rank] == host]
    for rank in victims:
        some.signal(rank, signal.SIGKILL)
    blamed(some, [rank for rank in range(4) if rank not in victims], begin, victims, SOON_S)


def test_a_stopped_rank_is_no_dead_rank(fresh):
    """It is stopped for longer than another host may be silent: its kernel answers."""
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
def test_a_host_that_falls_silent_is_lost(fresh, lab, what):
    """While it sends, while it receives, and while everyone waits."""
    some = fresh(0, 0, 1, 1, **QUICK)
    begin = running(some, what)
    lab.hosts.link(1, False)
    try:
        on_0, on_1 = ([0], []) if what == "recv" else ([0, 1], [2, 3])
        blamed(some, on_0, begin, [2, 3], AFTER_SILENCE_S)
        blamed(some, on_1, begin, [0, 1], AFTER_SILENCE_S)
    finally:
        lab.hosts.link(1, True)
    if what == "recv":
        for rank in (1, 2, 3):
            some.signal(rank, signal.SIGKILL)


HASTY_S = 2                                             # before a link is given up, which is an error too


def hasty(world):
    dist.group.WORLD.set_timeout(timedelta(seconds=HASTY_S))
    return until_it_fails(world)


@pytest.mark.parametrize("transport, ports", [("ucx", (17000, 17099)), ("tcp", (1024, 65535))])
def test_a_connection_that_is_not_answered_holds_nobody_up(fresh, lab, transport, ports):
    """The first operation's connection gets no answer, as when a cable is pulled just then. A kernel retries for two
    minutes, but the ranks get an error after the timeout of the group."""
    some = fresh(*BLOCKS, environment={"TUTTI_TRANSPORT": transport, "UCX_TCP_PORT_RANGE": "17000-17099"})
    lab.hosts.close_ports(1, *ports)
    try:
        begin = time.monotonic()
        some.begin(hasty)
        for rank, outcome in enumerate(some.collect(SOON_S + 20)):
            assert not outcome.failed, f"rank {rank}: {outcome.trace or outcome.died}"
            kind, text, at = outcome.value
            assert kind == "TimeoutError", f"rank {rank}: {kind}: {text}"
            assert at - begin < HASTY_S + SOON_S, f"rank {rank} heard of it after {at - begin:.1f} s: {text}"
    finally:
        lab.hosts.plain(1)


def test_a_short_break_is_none(fresh, lab):
    some = fresh(*BLOCKS)
    some.begin(sums_for, 4)
    time.sleep(1)
    lab.hosts.link(1, False)
    time.sleep(1)
    lab.hosts.link(1, True)
    assert [outcome.value for outcome in some.collect(60)] == ["right"] * 4


def test_loss_and_delay_are_no_failures(fresh, lab):
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


def test_a_far_host_is_known_as_far(fresh, lab):
    lab.hosts.shape(1, delay="20ms")                    # there or back
    try:
        values = fresh(0, 1).run(message_ns)
    finally:
        lab.hosts.shape(1)
    assert values[0] == values[1] >= 9e6


# ---- joining ----
def test_a_firewall_is_told_with_both_ends(fresh, lab):
    """Everyone reaches the store on h0; h1 and h2 do not reach each other."""
    lab.hosts.swallow(1, 2)
    try:
        outcomes = fresh(0, 1, 2, joined=False, timeout_s=6).joined
    finally:
        lab.hosts.swallow(1, 2, False)
    assert {outcome.error for outcome in outcomes} <= {"TimeoutError", "PeerError"}, outcomes
    texts = [outcome.text for outcome in outcomes]
    assert any("h1" in text and "h2" in text for text in texts), texts
    assert any(re.search("firewall|TUTTI_SOCKET_IFNAME", text) for text in texts), texts


def test_an_interface_that_nobody_has(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_SOCKET_IFNAME": "nothing0"}).joined
    failures(outcomes, "ValueError", "TUTTI_SOCKET_IFNAME=nothing0", "eth0 (10.77.0.")


def test_an_interface_that_one_host_has_not(fresh):
    """All hear of it, and none waits for it."""
    for odd in (1, 0):
        outcomes = fresh(0, 1, joined=False, timeout_s=60, on_host={odd: {"TUTTI_SOCKET_IFNAME": "nothing0"}}).joined
        failures(outcomes, "ValueError", "TUTTI_SOCKET_IFNAME=nothing0", "eth0 (10.77.0.")
        assert f"rank {odd} (process " in outcomes[1 - odd].text and f"on h{odd}" in outcomes[1 - odd].text, outcomes


def test_the_interface_may_be_said(fresh):
    some = fresh(0, 1, environment={"TUTTI_SOCKET_IFNAME": "=eth0"})
    assert [outcome.failed for outcome in some.joined] == [False, False]


def test_ranks_that_take_the_group_for_another_size(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=6, sizes={"1": 3}).joined
    assert all(outcome.error in ("MismatchError", "TimeoutError") for outcome in outcomes), outcomes
    assert any("3" in outcome.text for outcome in outcomes), outcomes


def test_pretending_hosts_over_hosts_is_refused(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_HOSTS": "2"}).joined
    failures(outcomes, "ValueError", "TUTTI_HOSTS", "h0", "h1", "unset")


def test_transports_that_differ(fresh):
    """Ranks with different transports, as when only one host has RDMA, get an error that names both and the remedy."""
    outcomes = fresh(0, 1, joined=False, timeout_s=10, on_host={1: {"TUTTI_TRANSPORT": "ucx"}}).joined
    failures(outcomes, "MismatchError", "rank 1", "by ucx", "by tcp", "set TUTTI_TRANSPORT", "RDMA")
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_TRANSPORT": "tcp,ucx"},
                     on_host={1: {"TUTTI_TRANSPORT": "ucx"}}).joined
    failures(outcomes, "MismatchError", "rank 1", "by ucx,", "by ucx and tcp:")


@pytest.mark.parametrize("transport", ["ucx", "tcp,ucx"])
def test_no_ucx_on_one_host(fresh, transport):
    """Every rank hears it, and what to install."""
    outcomes = fresh(0, 1, joined=False, timeout_s=10, environment={"TUTTI_TRANSPORT": transport},
                     on_host={1: {"TUTTI_UCX": "/nowhere/libucp.so.0"}}).joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert outcomes[1].error == "NotImplementedError" and "/nowhere/libucp.so.0" in outcomes[1].text, outcomes[1].text
    assert "rank 1" in outcomes[0].text, outcomes[0].text


def test_secrets_that_differ(fresh, tmp_path):
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


def test_a_job_on_one_host_sends_nothing_to_another(fresh, lab):
    """The interface's counters hardly grow during a job on one host; those of a job on two hosts do."""
    alone = fresh(1, 1)
    before = sum(lab.hosts.counters(1))
    alone.run(send_much)
    assert sum(lab.hosts.counters(1)) - before < 1 << 20
    both = fresh(0, 1)
    before = lab.hosts.counters(1)[1]
    both.run(send_much)
    assert lab.hosts.counters(1)[1] - before > 4 * (1 << 24) // 2
