"""Tests of hosts that are namespaces (tests/support/hosts.py) and of script/hosts: hosts are separate, faults of the
network are those that were asked for, and nothing is left behind."""
import os
import re
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace

import hosts as namespaces
import pytest

pytestmark = pytest.mark.usefixtures("namespaces_work")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "script/hosts"
# Echoes datagrams.
ECHO = """
import socket
s = socket.socket(socket.AF_INET6 if V6 else socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 4711))
print("ready", flush=True)
while True:
    data, whence = s.recvfrom(100)
    s.sendto(data, whence)
"""
# Sends N datagrams. Prints how many come back, and the shortest round trip in ms.
ASK = """
import socket, time
s = socket.socket(socket.AF_INET6 if V6 else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
back, best = 0, 1e9
for n in range(N):
    begin = time.monotonic()
    s.sendto(b"x", (ADDRESS, 4711))
    try:
        s.recv(100)
    except OSError:
        continue
    back, best = back + 1, min(best, time.monotonic() - begin)
print(back, 1e3 * best)
"""


def python(some, host, code, **values):
    program = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + code
    return some.start(host, [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def asked(some, source, target, count, v6=False):
    """Sends `count` datagrams to an echo server. Returns how many come back, and the shortest round trip in ms."""
    echo = python(some, target, ECHO, V6=v6)
    assert echo.stdout.readline() == "ready\n"
    ask = python(some, source, ASK, V6=v6, N=count, ADDRESS=namespaces.address_of(target, v6))
    back, best = ask.communicate(timeout=60)[0].split()
    echo.kill()
    assert echo.wait(10) == -signal.SIGKILL
    echo.stdout.close()
    return int(back), float(best)


@pytest.mark.parametrize("v6", [False, True])
def test_hosts_reach_each_other(hosts, v6):
    assert asked(hosts(3), 2, 0, 5, v6)[0] == 5


def test_hosts_have_own_names_networks_and_shared_memory(hosts):
    some = hosts(3)
    here = [some.on_host(host, "hostname") for host in range(3)]
    assert here == ["h0\n", "h1\n", "h2\n"]
    assert len({some.on_host(host, "readlink /proc/self/ns/net") for host in range(3)}) == 3
    some.on_host(1, "touch /dev/shm/of-h1")
    assert some.on_host(0, "ls /dev/shm") == ""
    assert some.on_host(0, "ls /sys/class/net").split() == ["eth0", "lo"]


def test_pulled_cable_stops_all_packets(hosts):
    some = hosts(3)
    some.link(1, False)
    try:
        assert asked(some, 0, 1, 1)[0] == 0 and asked(some, 0, 2, 1)[0] == 1
    finally:
        some.link(1, True)
    assert asked(some, 0, 1, 5)[0] >= 1


def test_firewall_stops_packets_between_two_hosts_only(hosts):
    some = hosts(3)
    some.swallow(1, 2)
    try:
        assert asked(some, 1, 2, 1)[0] == 0 and asked(some, 0, 2, 1)[0] == 1
    finally:
        some.swallow(1, 2, False)
    assert asked(some, 1, 2, 2)[0] == 2


def test_partition_stops_packets_until_it_ends(hosts):
    some = hosts(3)
    some.partition({0})
    try:
        assert asked(some, 0, 2, 1)[0] == 0 and asked(some, 1, 2, 1)[0] == 1
    finally:
        some.partition({0}, False)
    assert asked(some, 0, 2, 2)[0] == 2


def test_packets_are_delayed_and_lost_as_asked(hosts):
    some = hosts(3)
    some.shape(1, delay="20ms")
    try:
        assert asked(some, 0, 1, 3)[1] >= 20
        some.shape(1, loss="50%")
        # All 20 arrive with a probability of 1e-6.
        assert asked(some, 0, 1, 20)[0] < 20
    finally:
        some.shape(1)
    assert asked(some, 0, 1, 5)[0] == 5


def test_counters_grow_with_sent_bytes(hosts):
    some = hosts(3)
    before = some.counters(0)[1]
    asked(some, 0, 1, 10)
    # A datagram of one byte has 43 bytes with its headers.
    assert some.counters(0)[1] - before >= 10 * 43


def test_processes_of_a_deleted_host_are_killed():
    with namespaces.Hosts(2) as some:
        sleeper = some.start(1, ["sleep", "1000"])
        while len(some.processes(1)) < 1 or sleeper.inside() is None:
            time.sleep(0.01)
        some.delete(1)
        assert sleeper.wait(10) == -signal.SIGKILL


def test_host_goes_on_after_an_orphan_ends(hosts):
    """A process whose parent has ended becomes a child of the host's first process, which reaps it and goes on."""
    some = hosts(3)
    parent = some.start(1, ["sh", "-c", "sleep 0.1 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
    orphan = parent.communicate(timeout=60)[0].strip()
    deadline = time.monotonic() + 10
    while (left := orphan in some.on_host(1, "ls /proc").split()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left and some.on_host(1, "hostname") == "h1\n"


# ---- the command ----
def command(*words, **options):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=120, **options)


def test_command_prints_output_and_returns_status_of_each_host():
    text = "echo $(hostname) $NODE_RANK $NNODES $MASTER_ADDR $MASTER_PORT; exit $NODE_RANK"
    run = command("2", "--", "sh", "-c", text)
    assert sorted(run.stdout.splitlines()) == ["h0 | h0 0 2 10.77.0.1 29500", "h1 | h1 1 2 10.77.0.1 29500"]
    assert run.returncode == 1, run.stderr
    assert command("1", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_hosts_can_have_ipv6_only():
    run = command("2", "--ipv6", "--", "sh", "-c", "echo $MASTER_ADDR; ip -4 addr show eth0")
    assert sorted(run.stdout.split("\n")) == ["", "h0 | fd77::1", "h1 | fd77::1"]


def test_torchrun_gets_options_of_the_hosts():
    loader = SourceFileLoader("script_hosts", str(SCRIPT))
    script = module_from_spec(spec_from_loader("script_hosts", loader))
    loader.exec_module(script)

    def command_of(words, host=1, **more):
        options = {"hosts": 2, "ranks": None, "ipv6": False, "port": 29500, "each": False, **more}
        return " ".join(script.command_on(host, SimpleNamespace(command=words.split(), **options)))

    common = "torchrun --nnodes 2 --node-rank 1 --master-addr 10.77.0.1 --master-port 29500"
    assert command_of("torchrun --nproc_per_node=4 a.py") == f"{common} --nproc_per_node=4 a.py"
    assert command_of("a.py --x") == f"{common} --nproc-per-node 1 a.py --x"
    assert command_of("a.py", ranks=3) == f"{common} --nproc-per-node 3 a.py"
    assert command_of("torchrun a.py", each=True) == "torchrun a.py" and command_of("ls .") == "ls ."
    with pytest.raises(SystemExit):
        command_of("torchrun --nproc-per-node 4 a.py", ranks=3)


SUM = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} on {socket.gethostname()} has {total.item():.0f}\\n".encode())
dist.destroy_process_group()
"""


def test_program_of_torch_runs_on_two_hosts(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    program = tmp_path / "program.py"
    program.write_text(SUM)
    run = command("2", "--ranks", "2", "--", program)
    assert run.returncode == 0, run.stdout + run.stderr
    found = sorted(re.findall(r"^(h\d) \| rank (\d) on (h\d) has 4$", run.stdout, re.MULTILINE))
    assert found == [("h0", "0", "h0"), ("h0", "1", "h0"), ("h1", "2", "h1"), ("h1", "3", "h1")]


@pytest.mark.parametrize("asked, expected", [([], ("cubic", "reno")), (["--congestion", "reno"], ("reno",))])
def test_congestion_control_does_not_depend_on_the_machine(asked, expected):
    run = command("1", *asked, "--", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")
    assert run.stdout in [f"h0 | {name}\n" for name in expected], run.stderr


def test_unknown_congestion_control_is_an_error():
    run = command("1", "--congestion", "prayer", "--", "true")
    assert run.returncode == 1 and "TCP of a namespace cannot have prayer here; it can have " in run.stderr


def marked(mark):
    """Returns the processes whose command has this word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_command_leaves_no_process(number):
    mark = f"9999.{os.getpid()}"
    run = subprocess.Popen([SCRIPT, "2", "--delay", "1ms", "--", "sh", "-c", f"echo up; sleep {mark}"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert {run.stdout.readline(), run.stdout.readline()} == {"h0 | up\n", "h1 | up\n"}
    run.send_signal(number)
    status = run.wait(60)
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(mark)
    run.stdout.close()


def test_sigterm_ends_processes_that_ignore_it():
    """The command gets a second to end, not the ten after Ctrl-C."""
    mark = f"8888.{os.getpid()}"
    run = subprocess.Popen([SCRIPT, "2", "--", "sh", "-c", f"trap '' INT TERM; echo up; sleep {mark}; sleep {mark}"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert {run.stdout.readline(), run.stdout.readline()} == {"h0 | up\n", "h1 | up\n"}
    run.send_signal(signal.SIGTERM)
    assert run.wait(9) == 128 + signal.SIGTERM and not marked(mark)
    run.stdout.close()


def test_error_of_a_missing_tool_says_what_to_install(tmp_path):
    run = subprocess.run([sys.executable, SCRIPT, "2", "--", "true"], env={"PATH": str(tmp_path)}, capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 1 and run.stderr == "error: there is no `ip`; Debian has it in the package iproute2\n"
