"""Tests of the parts of `tutti doctor` that compare hosts: who meets where, connections over the loopback, and what it
concludes from connections that the tests describe."""
import socket
import threading

import pytest

from torch_tutti import cli
from torch_tutti._doctor import findings, probes
from torch_tutti._doctor.host_checks import Host, Path, compare_hosts, judge_path, ports_text
from torch_tutti._doctor.meeting import NoMeeting, Place, await_store, find_place

ONE = Host("node0", "eth0", "10.0.0.1", [30000], 10000, 1500, "2.13.0", "0.1.0")
OTHER = ONE._replace(name="node1", address="10.0.0.2")
GOOD = Path({30000: ""}, 0.01, 1500, 9000.0)
LOOPBACK = "127.0.0.1"


# ---- where hosts meet ----
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "4711",
            "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize("options, environment, place", [
    ((None, None, None), {}, None),
    ((None, None, None), {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, None),
    ((None, None, None), {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ((None, None, None), TORCHRUN, Place(1, 4, "node0", 4711, False, 9)),
    ((None, None, None), {**TORCHRUN, "RANK": "0"}, Place(0, 4, "node0", 4711, False, 9)),
    ((None, None, None), {"NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "h0"}, Place(0, 2, "h0", 29500, True, 9)),
    ((0, 2, "node0:1"), {}, Place(0, 2, "node0", 1, True, 9)),
    ((1, 2, "[fd77::1]:29500"), {}, Place(1, 2, "fd77::1", 29500, False, 9)),
    ((None, None, "node0:5"), {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, Place(3, 4, "node0", 5, False, 9)),
])
def test_place_comes_from_options_and_launchers(options, environment, place):
    assert find_place(*options, 9, environment) == place


@pytest.mark.parametrize("options, text", [
    (["--rank", "0"], "need --rank R, --hosts N and --at"), (["--at", "node0:1"], "need --rank R"),
    (["--rank", "2", "--hosts", "2", "--at", "node0:1"], "--rank 2 and --hosts 2"),
    (["--rank", "0", "--hosts", "1", "--at", "node0:1"], "2 or more"),
    (["--rank", "0", "--hosts", "2", "--at", "node0"], "--at node0 is not HOST:PORT"),
    (["--rank", "0", "--hosts", "2", "--at", "node0:70000"], "is not HOST:PORT"),
    (["--rank", "x"], "invalid int value"),
])
def test_wrong_places_are_refused(options, text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *options])
    told = capsys.readouterr()
    assert ended.value.code == 2 and text in told.err and not told.out


@pytest.mark.parametrize("host, text", [(LOOPBACK, "nobody listens there after 0.2 s"),
                                        ("no-such-host.invalid", "the name has no address")])
def test_store_that_cannot_be_reached_is_explained(host, text):
    with socket.create_server((LOOPBACK, 0)) as once:
        port = once.getsockname()[1]
    with pytest.raises(NoMeeting, match=text) as raised:
        await_store(Place(1, 2, host, port, False, 0.2))
    assert f"{host}:{port}" in str(raised.value) and raised.value.remedy


# ---- connections ----
@pytest.fixture
def listener():
    some = probes.Listener(LOOPBACK, [0, 0])
    yield some
    some.close()


def test_listener_answers_at_all_its_ports(listener):
    with socket.create_server((LOOPBACK, 0)) as once:
        closed = once.getsockname()[1]
    results = probes.try_ports(LOOPBACK, [*listener.ports, closed])
    assert len(listener.ports) == 2 and results == {**dict.fromkeys(listener.ports, ""), closed: "Connection refused"}
    assert abs(probes.ask_clock_difference(LOOPBACK, listener.ports[0])) < 60
    assert probes.read_path_mtu(LOOPBACK, listener.ports[1]) > 0
    assert probes.measure_mbit(LOOPBACK, listener.ports[0]) > 0


def test_taken_ports_are_left_out(listener):
    second = probes.Listener(LOOPBACK, [*listener.ports, 0])
    assert len(second.ports) == 1 and not set(second.ports) & set(listener.ports)
    second.close()


def test_peer_that_reads_no_data_has_no_speed():
    """The listener accepts, and closes the connection after the first bytes, as if large packets were lost."""
    with socket.create_server((LOOPBACK, 0)) as server:
        def close_early():
            connection, _ = server.accept()
            connection.recv(1)
            connection.close()
        thread = threading.Thread(target=close_early)
        thread.start()
        assert probes.measure_mbit(LOOPBACK, server.getsockname()[1]) is None
        thread.join()


def test_port_without_an_answer_is_named():
    """A queue of connections that is full drops new ones, as a firewall does."""
    with socket.create_server((LOOPBACK, 0), backlog=0) as server:
        port = server.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex((LOOPBACK, port))
        assert probes.try_ports(LOOPBACK, [port], 0.3) == {port: "no answer"}
        for one in waiting:
            one.close()


# ---- conclusions ----
def test_equal_hosts_and_good_paths_have_no_fault():
    assert list(compare_hosts(ONE, OTHER)) == []
    assert [finding.level for finding in judge_path(ONE, 1, OTHER, GOOD)] == [findings.OK]
    same_host, = judge_path(ONE, 1, ONE, GOOD._replace(mbit=100.0))
    assert same_host.level == findings.OK


@pytest.mark.parametrize("changes, level, text", [
    ({"torch": "2.14.0"}, findings.PROBLEM, "torch 2.13.0 here, 2.14.0 on host 0 (node1)"),
    ({"tutti": "0.2.0"}, findings.PROBLEM, "tutti 0.1.0 here, 0.2.0 on host 0"),
    ({"speed_mbit": 1000}, findings.WARNING, "eth0 has 10 Gbit/s, eth0 of host 0 (node1) has 1 Gbit/s"),
    ({"mtu": 9000}, findings.WARNING, "1500 bytes on eth0, 9000 on eth0"),
])
def test_difference_from_host_0_is_found(changes, level, text):
    found, = compare_hosts(ONE, OTHER._replace(**changes))
    assert found.level == level and text in found.found and found.remedy


BLOCKED = {30000: "", **dict.fromkeys(range(30001, 30004), "no answer")}


@pytest.mark.parametrize("changes, level, text", [
    ({"errors": BLOCKED}, findings.PROBLEM, "3 of 4 ports of node1 (10.0.0.2) do not answer connections from node0 "
                                            "(10.0.0.1): ports 30001-30003: no answer"),
    ({"errors": {5: "No route to host"}}, findings.PROBLEM, "no port of node1"),
    ({"errors": {}}, findings.PROBLEM, "listens at no port"),
    ({"mbit": None}, findings.PROBLEM, "large packets do not arrive"),
    ({"mbit": 940.0}, findings.WARNING, "940 Mbit/s by one connection, of 10 Gbit/s"),
    ({"clock_s": -3.5}, findings.WARNING, "the clock of node1 is 3.5 s behind"),
])
def test_fault_of_a_path_is_found(changes, level, text):
    found = [finding for finding in judge_path(ONE, 1, OTHER, GOOD._replace(**changes)) if finding.level != findings.OK]
    assert [finding.level for finding in found] == [level] and text in found[0].found and found[0].remedy


def test_ports_are_shown_as_runs():
    assert ports_text([5]) == "port 5" and ports_text([7, 3, 4, 5]) == "ports 3-5, 7"
