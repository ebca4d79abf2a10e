"""Tests of a firewall between two hosts, which drops new connections to all ports but those of the store and a range.
With TUTTI_PORTS a job passes it; without, or if the range is used up, all ranks get an error that names the ports."""
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from across import BACKEND, failures

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
RANGE = (17000, 17099)
# The stores of the tests listen at ports from 20000 on.
CLOSED = (1024, RANGE[0] - 1), (RANGE[1] + 1, 19999), (25000, 65535)


@pytest.fixture
def firewall(lab):
    """Closes the ports between h1 and all other hosts."""
    lab.hosts.close_ports(1, *CLOSED)
    yield
    lab.hosts.plain(1)


def settings(transport, ports=RANGE):
    return {"TUTTI_TRANSPORT": transport, "TUTTI_PORTS": f"{ports[0]}-{ports[1]}"}


def sums(world):
    for count in 1, 1 << 20:
        total = torch.full((count,), world.rank + 1.0)
        dist.all_reduce(total)
        assert bool((total == world.size * (world.size + 1) / 2).all()), "a wrong sum"


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_job_passes_a_firewall_through_its_ports(fresh, firewall, transport):
    """Two ranks on each host, so ports of the range are taken already when the second rank listens."""
    fresh(0, 0, 1, 1, environment=settings(transport)).run(sums)


def test_error_of_closed_ports_names_the_setting(fresh, firewall):
    outcomes = fresh(0, 1, joined=False, timeout_s=6).joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert any("firewall" in outcome.text and "TUTTI_PORTS" in outcome.text for outcome in outcomes), outcomes


def send_between_hosts(world):
    if world.rank == 1:
        dist.send(torch.ones(1), 3)
    if world.rank == 3:
        dist.recv(torch.ones(1), 1)
    dist.barrier()


def test_error_of_a_firewall_that_comes_later_names_the_setting(lab, fresh):
    """Ranks 1 and 3 connect at their first message."""
    some = fresh(0, 0, 1, 1, environment={"TUTTI_TRANSPORT": "tcp"})
    lab.hosts.close_ports(1, *CLOSED)
    outcomes = some.outcomes(send_between_hosts)
    lab.hosts.plain(1)
    texts = [outcome.text for outcome in outcomes]
    assert all(outcome.failed for outcome in outcomes), texts
    assert all("is out of reach of rank" in text and "a firewall closes this port (see TUTTI_PORTS)" in text
               for text in texts), texts


def test_used_up_range_is_an_error_on_all(fresh):
    """One port for two ranks of a host: the second to come cannot have it."""
    outcomes = fresh(1, 1, 0, joined=False, timeout_s=20, environment=settings("tcp", (17000, 17000))).joined
    texts = [outcome.text for outcome in outcomes]
    assert {outcome.error for outcome in outcomes} == {"SystemError"}, texts
    assert all("TUTTI_PORTS=17000-17000 is used up" in text and "ports taken: 1" in text for text in texts), texts
    assert any("rank 0 (process " in text or "rank 1 (process " in text for text in texts), texts


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_range_without_a_port_for_messages_is_an_error_on_all(fresh, transport):
    outcomes = fresh(0, 1, joined=False, timeout_s=20, environment=settings(transport, (17000, 17000))).joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert any("TUTTI_PORTS=17000-17000 is used up" in outcome.text for outcome in outcomes), outcomes


def test_malformed_range_is_an_error_on_all(fresh):
    outcomes = fresh(0, 1, joined=False, timeout_s=20, environment={"TUTTI_PORTS": "17000"}).joined
    failures(outcomes, "ValueError", "TUTTI_PORTS=17000: not a range", "30000-30100")


def join_silently(world, path):
    """Returns the error of joining, and what this rank wrote to standard error meanwhile."""
    with open(path, "w+") as log:
        os.dup2(log.fileno(), 2)
        try:
            dist.init_process_group("tutti", store=dist.PrefixStore("silent", world.store), rank=world.rank,
                                    world_size=world.size, timeout=timedelta(seconds=20))
        except dist.DistBackendError as error:
            log.seek(0)
            return str(error), log.read()
    return "joined", ""


def test_dropped_packets_are_reported_before_the_timeout(fresh, firewall, tmp_path):
    """After 10 s a warning has the text of the later error, with address and rank, once."""
    some = fresh(0, 1, join=False)
    for rank, pipe in enumerate(some.pipes):
        pipe.send((join_silently, (str(tmp_path / str(rank)),)))
    found = [outcome.value for outcome in some.collect(60)]
    warned = [log for _, log in found if "warn: after 10 s rank " in log]
    assert warned and all(error != "joined" for error, _ in found), found
    for log in warned:
        assert log.count("warn: after 10 s") == 1 and "TUTTI_PORTS" in log and "rank 0 (" in log and "10.77.0." in log
