"""Tests of `tutti doctor` between two hosts: healthy ones, a firewall that drops connections in one direction, and a
store that nobody has made."""
import json
import os
import subprocess
import sys

from hosts import address_of

LIMIT_S = 120
# Connections to these ports are dropped. The others that the tests use are open.
CLOSED = (17000, 17009)


def examined(some, ranks=(0, 1), timeout_s=60, ports=()):
    """Runs `tutti doctor` on hosts. Returns for each its exit code and the levels and texts of its findings, and of
    those of all hosts that it printed. ports: TUTTI_PORTS of each host."""
    running = []
    for rank in ranks:
        environment = dict(os.environ, OMP_NUM_THREADS="1", TUTTI_HOSTS="", TUTTI_PORTS=ports[rank] if ports else "")
        command = [sys.executable, "-m", "torch_tutti", "doctor", "--json", "--rank", rank, "--hosts", 2, "--timeout",
                   timeout_s, "--at", f"{address_of(0)}:29500"]
        running.append(some.start(rank, command, env=environment, stdout=subprocess.PIPE, text=True))
    results = []
    for process in running:
        told = json.loads(process.communicate(timeout=LIMIT_S)[0])
        results.append((process.returncode, {host["name"]: [
            (one["level"], one["check"], one["found"]) for one in host["findings"]] for host in told["hosts"]}))
    return results


def test_healthy_hosts_have_no_problem(hosts):
    (code, told), (other_code, other_told) = examined(hosts(2))
    assert (code, other_code) == (0, 0), (told, other_told)
    assert list(told) == ["h0", "h1"] and other_told == {"h1": told["h1"]}
    for name, check, address in (("h0", "to host 1", "h1 (10.77.0.2)"), ("h1", "to host 0", "h0 (10.77.0.1)")):
        text, = [text for _, found_check, text in told[name] if found_check == check]
        assert text.startswith(f"{address} answers; ") and text.endswith("of 10 Gbit/s; path MTU 1500"), text


def test_firewall_in_one_direction_is_a_problem_of_that_direction(hosts):
    """Host 0 listens at five ports that are closed and five that are open, host 1 at open ones."""
    some = hosts(2)
    some.close_ports(1, CLOSED)
    try:
        (code, told), (other_code, _) = examined(some, ports=("17005-17014", "18000-18003"))
    finally:
        some.plain(1)
    assert (code, other_code) == (1, 1)
    problems = {name: [found for found in of_host if found[0] == "problem"] for name, of_host in told.items()}
    assert problems == {"h0": [], "h1": [("problem", "to host 0", "5 of 10 ports of h0 (10.77.0.1) do not answer "
                                          "connections from h1 (10.77.0.2): ports 17005-17009: no answer")]}


def test_absent_hosts_are_problems(hosts):
    (code, told), = examined(hosts(2), [1], 1)
    assert code == 1 and told["h1"][-1] == ("problem", "store", f"the store at {address_of(0)}:29500: its host "
                                            "answers, but nobody listens there after 1 s")
    (code, told), = examined(hosts(2), [0], 1)
    assert code == 1 and told["h0"][-1] == ("problem", "to host 1", "host 1 has not come to the store within 1 s")
