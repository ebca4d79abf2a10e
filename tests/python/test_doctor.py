"""Tests of `tutti doctor` on machines that the tests describe, each healthy but for one fault."""
import dataclasses
import json
import socket

import pytest
from program_start import run_python

from torch_tutti import _library, cli
from torch_tutti._doctor import findings, machine_checks, network_checks
from torch_tutti._doctor.interfaces import Interface, choose, list_interfaces
from torch_tutti._doctor.machine import Machine, Packages

CHECKS = (*machine_checks.CHECKS, *network_checks.CHECKS)
LO, ETH, FAST = Interface("lo", "127.0.0.1", True), Interface("eth0", "10.0.0.1", True), \
    Interface("ib0", "10.1.0.1", True)
FILES = {
    "proc/meminfo": "MemTotal: 67108864 kB\nMemAvailable:   33554432 kB\n",
    "proc/self/mounts": "shm /dev/shm tmpfs rw,nosuid,size=16777216k 0 0\n",
    "proc/self/cgroup": "0::/jobs/7\n",
    "sys/fs/cgroup/jobs/7/cpu.max": "max 100000",
    "proc/sys/kernel/yama/ptrace_scope": "0\n",
    "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/class/net/eth0/speed": "10000\n", "sys/class/net/eth0/mtu": "1500\n",
}


def resolve_one(name):
    """Knows one name only."""
    if name != "node1":
        raise socket.gaierror(-2, "Name or service not known")
    return ["10.0.0.1"]


@pytest.fixture
def healthy(tmp_path):
    """Returns healthy(files, environment, **fields): a machine without faults but those given. A file of None is
    absent."""
    def machine(files=(), environment=(), **fields):
        for path, text in {**FILES, **dict(files)}.items():
            if text is not None:
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(text)
        made = Machine(dict(environment), "node1", 8, {"nofile": 65536, "memlock": None, "fsize": None},
                       Packages("2.13.0", "0.1.0", ["2.13"]), _library.info()["settings"], [LO, ETH], resolve_one,
                       lambda host: None, root=tmp_path)
        return dataclasses.replace(made, **fields)
    return machine


def faults(machine):
    return [finding for check in CHECKS for finding in check(machine) if finding.level != findings.OK]


def test_healthy_machine_has_no_fault(healthy):
    assert faults(healthy()) == []
    assert faults(healthy(environment={"TUTTI_PORTS": "30000-30100", "LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "2",
                                       "MASTER_PORT": "29500", "TUTTI_SLOTS": "3"}, store_host="node1")) == []
    # torchrun --standalone takes any port, and listens there before the ranks start.
    assert faults(healthy(environment={"MASTER_PORT": "40000", "TORCHELASTIC_USE_AGENT_STORE": "True"})) == []


WARNING, PROBLEM = findings.WARNING, findings.PROBLEM
LISTENS = "  sl local_address rem_address st\n 0: 00000000:7530 00000000:0000 0A 0 0\n"
PLANTED = {
    "no torch": (PROBLEM, "torch is not installed", {"packages": Packages(None, "0.1.0", ["2.13"])}),
    "other torch": (PROBLEM, "tutti was built for torch 2.13", {"packages": Packages("2.14.1", "0.1.0", ["2.13"])}),
    "other Python": (PROBLEM, "built for another Python", {"packages": Packages("2.13.0", "0.1.0", [])}),
    "misspelt setting": (WARNING, "did you mean TUTTI_PORTS", {"environment": {"TUTTI_PROTS": "1-2"}}),
    "number out of range": (WARNING, "allowed: 0 to 8", {"environment": {"TUTTI_SLOTS": "9"}}),
    "text for a number": (WARNING, "TUTTI_SLOTS=many", {"environment": {"TUTTI_SLOTS": "many"}}),
    "few files": (PROBLEM, "limit is 256; 64 ranks", {"limits": {"nofile": 256}, "environment": {"WORLD_SIZE": "64"}}),
    "locked memory": (WARNING, "65536 bytes, and RDMA", {"limits": {"memlock": 65536},
                                                         "files": {"sys/class/infiniband/mlx5_0": ""}}),
    "file size": (WARNING, "ulimit -f unlimited", {"limits": {"fsize": 1 << 20}}),
    "little memory": (WARNING, "100 MiB are free", {"files": {"proc/meminfo": "MemAvailable: 102400 kB\n"}}),
    "memory of a container": (WARNING, "512 MiB, the limit", {"files": {"sys/fs/cgroup/jobs/memory.max": "536870912"}}),
    "no shared memory": (PROBLEM, "memfd_create fails: Operation", {"shared_memory_error": "Operation not permitted"}),
    "small /dev/shm": (WARNING, "--shm-size", {"files": {"proc/self/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0"}}),
    "more ranks than cores": (WARNING, "8 cores, 16 ranks", {"environment": {"LOCAL_WORLD_SIZE": "16"}}),
    "too many threads": (WARNING, "OMP_NUM_THREADS=2,", {"environment": {"LOCAL_WORLD_SIZE": "4",
                                                                        "OMP_NUM_THREADS": "8"}}),
    "threads not set": (WARNING, "OMP_NUM_THREADS=4,", {"environment": {"LOCAL_WORLD_SIZE": "2"}}),
    "processor time": (WARNING, "may use 1.5 cores", {"environment": {"LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "4"},
                                                      "files": {"sys/fs/cgroup/jobs/7/cpu.max": "150000 100000"}}),
    "slow clock": (WARNING, "hpet", {"files": {"sys/devices/system/clocksource/clocksource0/current_clocksource":
                                               "hpet"}}),
    "ptrace": (WARNING, "kernel.yama.ptrace_scope=0", {"files": {"proc/sys/kernel/yama/ptrace_scope": "1"}}),
    "unknown interface": (PROBLEM, "TUTTI_SOCKET_IFNAME=ib matches none", {"environment": {"TUTTI_SOCKET_IFNAME":
                                                                                           "ib"}}),
    "no interface": (WARNING, "no other host can be reached", {"interfaces": [LO]}),
    "slow interface": (WARNING, "TUTTI_SOCKET_IFNAME=ib0", {"interfaces": [LO, ETH, FAST],
                                                            "files": {"sys/class/net/ib0/speed": "100000"}}),
    "small MTU": (WARNING, "1280 bytes on eth0", {"files": {"sys/class/net/eth0/mtu": "1280"}}),
    "host without address": (WARNING, "node2 has no address: Name or", {"name": "node2"}),
    "store without address": (PROBLEM, "storre has no address", {"store_host": "storre"}),
    "malformed ports": (PROBLEM, "TUTTI_PORTS=3000 is not a range", {"environment": {"TUTTI_PORTS": "3000"}}),
    "reversed ports": (PROBLEM, "is not a range", {"environment": {"TUTTI_PORTS": "3001-3000"}}),
    "ephemeral ports": (WARNING, "overlaps the ephemeral ports 32768-60999", {"environment": {"TUTTI_PORTS":
                                                                                             "32000-33000"}}),
    "used ports": (PROBLEM, "has 1 free ports; 2 are needed", {"environment": {"TUTTI_PORTS": "30000-30001"},
                                                               "files": {"proc/net/tcp": LISTENS}}),
    "ephemeral store": (WARNING, "MASTER_PORT=40000", {"environment": {"MASTER_PORT": "40000"}}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_the_only_one(healthy, name):
    level, text, fields = PLANTED[name]
    found = faults(healthy(**fields))
    assert [finding.level for finding in found] == [level], found
    assert text in " ".join(findings.lines(found)) and found[0].remedy
    assert findings.exit_code(found) == (level == PROBLEM)


def test_machine_that_hides_its_files_is_no_problem(healthy):
    assert findings.exit_code(faults(healthy(dict.fromkeys(FILES)))) == 0


# ---- the choice of an interface ----
@pytest.mark.parametrize("fields, reason", [
    ({}, "by the first that is up"), ({"store_host": "node1"}, "by the first that is up"),
    ({"store_host": "node1", "route_source": lambda host: "10.0.0.1"}, "by the route to node1"),
    ({"environment": {"TUTTI_SOCKET_IFNAME": "eth"}}, "by TUTTI_SOCKET_IFNAME"),
])
def test_reason_of_the_choice_is_shown(healthy, fields, reason):
    found, = network_checks.check_interface(healthy(**fields))
    assert found.found == f"eth0 (10.0.0.1), {reason}; 10 Gbit/s, MTU 1500"


DOWN, LINK_LOCAL = Interface("eth1", "10.2.0.1", False), Interface("eth2", "169.254.1.1", True)
SIX = Interface("eth0", "fd77::1", True)


@pytest.mark.parametrize("names, source, chosen", [
    ("", None, ETH), ("", "10.1.0.1", FAST), ("", "10.9.9.9", Interface("", "10.9.9.9", True)), ("ib", None, FAST),
    ("ib,eth", "10.0.0.1", FAST), ("=ib", None, None), ("=ib0,eth0", None, FAST), ("^eth", None, FAST),
    ("^eth,ib", None, None), ("^=eth", None, ETH), ("eth1", None, None), ("eth2", None, LINK_LOCAL), ("lo", None, LO),
])
def test_interface_is_the_one_that_the_library_chooses(names, source, chosen):
    assert choose([LO, LINK_LOCAL, DOWN, ETH, FAST, SIX], names, source) == chosen


def test_interfaces_of_this_machine_have_the_loopback():
    assert any(one.name == "lo" and one.address == "127.0.0.1" for one in list_interfaces())


# ---- the command ----
def test_command_prints_json_and_an_exit_code():
    done = run_python("-m", "torch_tutti", "doctor", "--json", TUTTI_PROTS="1")
    told = json.loads(done.stdout)
    found = findings.from_json(told["hosts"][0]["findings"])
    assert told["format"] == findings.FORMAT and findings.exit_code(found) == done.exitcodes[0]
    assert any(finding.check == "settings" and "TUTTI_PROTS" in finding.found for finding in found)
    # The library leaves the warning to the finding.
    assert "TUTTI_PROTS" not in done.stderr
    broken = run_python("-m", "torch_tutti", "doctor", TUTTI_PORTS="x")
    assert broken.exitcodes == [1] and "problem  ports" in broken.stdout


def test_wrong_usage_has_its_own_exit_code():
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--unknown"])
    assert ended.value.code == 2
