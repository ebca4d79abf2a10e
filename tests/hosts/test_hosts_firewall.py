"""Tests of a firewall between two hosts, which drops new connections to all ports but those of the store and a range.
With TUTTI_PORTS a job passes it; without, or if the range is used up, all ranks get an error that names the ports."""
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
