"""Faults planted into jobs of two hosts with two ranks each: for each, `tutti status` during it, the error, and
`tutti doctor` on the traces after it name the rank, the line of the program and the cause."""
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from across import BACKEND, await_status
from ranks import LIMIT_S

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
PLACEMENT = (0, 0, 1, 1)
# The ranks of the fault are 3, and 2 where it takes a group.
CULPRIT = 3
TIMEOUT_S = 5


# ---- programs of the ranks ----
def pause(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def skip_call(world, path):
    if world.rank == CULPRIT:
        pause(path)
    else:
        dist.all_reduce(torch.ones(100))


def give_other_shape(world, path):
    dist.all_reduce(torch.ones(101 if world.rank == CULPRIT else 100))


def call_in_other_order(world, path):
    calls = [lambda: dist.all_reduce(torch.ones(100)), lambda: dist.broadcast(torch.ones(100), 0)]
    for call in reversed(calls) if world.rank == CULPRIT else calls:
        call()


def call_in_other_group(world, path):
    group = dist.new_group([2, 3])
    dist.all_reduce(torch.ones(100), group=group if world.rank == CULPRIT else None)


def go_slow(world, path):
    if world.rank == CULPRIT:
        pause(path)
    dist.all_reduce(torch.ones(100))


def give_nan(world, path):
    numbers = torch.ones(100)
    if world.rank == CULPRIT:
        numbers[17] = float("nan")
    dist.all_reduce(numbers)


def raise_an_error(world, path):
    if world.rank == CULPRIT:
        raise ValueError("a mistake of the program")
    dist.all_reduce(torch.ones(100))


@dataclass
class Fault:
    """A fault. status, error, doctor: patterns of the output of `tutti status`, of the error of a rank that has no
    fault itself, and of the output of `tutti doctor`. signal: sent to the culprit. recovers: no rank fails in the
    end. leaves: the culprit leaves the group."""
    program: object
    status: list
    error: list
    doctor: list
    signal: int | None = None
    recovers: bool = False
    leaves: bool = False
    environment: dict = field(default_factory=dict)


WAITING = r"in call \d+: allreduce\(100 x float32, .*\) for \d+\.\d s, at \S*planted_faults.py:\d+ \(\w+\)"
AT_PAUSE = r"\S*planted_faults.py:\d+ \(pause\)"
FAULTS = {
    "skipped call": Fault(
        skip_call, [WAITING, rf"rank 3 .* on h1 .*, at {AT_PAUSE}", "=> the others wait for rank 3"],
        ["TimeoutError", rf"not been made by rank 3; rank 3 is at {AT_PAUSE}"],
        [r"problem +rank 3 +did not make the call allreduce\(100 x .*\(skip_call\); rank 3 is at " + AT_PAUSE]),
    "other shape": Fault(
        give_other_shape, ["has failed: ", "100 x float32", "101 x float32"],
        ["MismatchError", "rank 3", "100 x float32", "101 x float32"],
        [r"problem +other call +.*rank 3 calls allreduce\(101 x .*planted_faults.py:\d+ \(give_other_shape\)"]),
    "other order": Fault(
        call_in_other_order, ["has failed: ", "allreduce", "broadcast"], ["MismatchError", "rank 3"],
        [r"problem +other call +.*rank 3 calls broadcast\(100 x .*planted_faults.py:\d+"]),
    "other group": Fault(
        call_in_other_group, ["=> the others wait for rank 3, which waits in group 1"],
        ["TimeoutError", r"not been made by rank 3; rank 3 is at \S*planted_faults.py:\d+ \(call_in_other_group\)"],
        [r"problem +rank 3 +did not make the call .*; the last call of rank 3 was all_reduce at \S*planted_faults.py"]),
    "dead rank": Fault(
        skip_call, [r"has failed: .*rank 3 .* died"], ["PeerError", r"rank 3 of group 0 \(process \d+ on h1\) died"],
        [r"problem +rank 3 +died \(process \d+ on h1\)"], signal=signal.SIGKILL),
    "stopped rank": Fault(
        skip_call, [r"rank 3 .* on h1 has not answered", "rank 3 of other hosts did not answer"],
        ["TimeoutError", "not been made by rank 3"], [r"problem +rank 3 +did not make the call"],
        signal=signal.SIGSTOP),
    "slow rank": Fault(go_slow, [rf"rank 3 .*, at {AT_PAUSE}", "=> the others wait for rank 3"], [], [], recovers=True),
    "exception in one rank": Fault(
        raise_an_error, [r"rank 3 .*has left the group|has failed"],
        ["PeerError", "rank 3 of group 0 has ended or destroyed its group", "see its output"],
        [r"problem +rank 3 +has ended or destroyed its group, while rank \d waited for it"], leaves=True),
    # The error comes at once, and the group stays usable, so there is no status during it, and there are no traces.
    "NaN on one rank": Fault(
        give_nan, [], ["ResultError", r"the first NaN of this group is in the input of rank 3: all_reduce of \[100\] "
                       r"float32, element 17, called at \S*planted_faults.py:\d+ \(give_nan\)"], [],
        environment={"TUTTI_DEBUG": "1"}),
}


def warm_up(world):
    for _ in range(3):
        dist.all_reduce(torch.ones(10))


def leave(world):
    dist.destroy_process_group()


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_by_status_error_and_doctor(lab, fresh, tmp_path, name):
    fault, go, traces = FAULTS[name], str(tmp_path / "go"), tmp_path / "traces"
    traces.mkdir()
    some = fresh(*PLACEMENT, timeout_s=TIMEOUT_S, environment={
        "TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": str(traces / "trace_"), **fault.environment})
    some.run(warm_up)
    some.begin(fault.program, go)
    if fault.signal:
        some.signal(CULPRIT, fault.signal)
    if fault.leaves:
        some.collect(LIMIT_S, [CULPRIT])
        some.pipes[CULPRIT].send((leave, ()))
    await_status(lab, 0, *fault.status)
    if fault.recovers:
        open(go, "w").close()
    outcomes = some.collect(LIMIT_S, range(CULPRIT))
    open(go, "w").close()
    for outcome in outcomes:
        assert outcome.failed != fault.recovers, outcome
        for pattern in fault.error:
            assert re.search(pattern, f"{outcome.error}: {outcome.text}"), outcome
    if fault.signal == signal.SIGSTOP:
        some.signal(CULPRIT, signal.SIGCONT)
    some.close()
    if fault.doctor:
        command = [sys.executable, "-m", "torch_tutti", "doctor", str(traces)]
        told = subprocess.run(command, capture_output=True, text=True)
        assert told.returncode == 1, told
        for pattern in fault.doctor:
            assert re.search(pattern, told.stdout), f"{pattern}\n{told.stdout}"


# ---- faults that end joining ----
@pytest.fixture
def firewall(lab):
    """Closes the ports of tutti between the hosts. Those of the stores stay open."""
    lab.hosts.close_ports(1, (1024, 19999), (25000, 65535))
    yield {}
    lab.hosts.plain(1)


@pytest.fixture
def wrong_interface(lab):
    """Gives both hosts an interface that leads nowhere, and makes the ranks use it: one host alone would be reached by
    its own connections to the other."""
    for host in 0, 1:
        lab.hosts.on_host(host, "ip link add aside type veth peer name aside_end", "ip link set aside_end up",
                          f"ip addr add 10.{98 + host}.0.1/24 dev aside", "ip link set aside up")
    yield {"TUTTI_SOCKET_IFNAME": "=aside"}
    for host in 0, 1:
        lab.hosts.on_host(host, "ip link delete aside")


def test_firewall_is_named_by_status_and_error(lab, fresh, firewall):
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(fresh, *PLACEMENT, joined=False, timeout_s=TIMEOUT_S)
        await_status(lab, 0, r"rank \d of 4 has been joining group 0 for \d+\.\d s")
        outcomes = joining.result().joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert any(re.search(r"no answer: .* a firewall closes this port \(see TUTTI_PORTS\)", outcome.text)
               for outcome in outcomes), outcomes


def test_wrong_interface_is_named_by_the_error(fresh, wrong_interface):
    """The error comes at once, so the status shows nothing before it."""
    outcomes = fresh(*PLACEMENT, joined=False, timeout_s=TIMEOUT_S, environment=wrong_interface).joined
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert any(re.search(r"at 10\.9[89]\.0\.1:\d+: .*\(see TUTTI_SOCKET_IFNAME\)", outcome.text)
               for outcome in outcomes), outcomes


def join_late(world):
    dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=world.size)


def test_store_that_has_gone_is_named_by_the_error(fresh):
    """The error comes at once, so the status shows nothing before it."""
    some = fresh(*PLACEMENT, join=False, timeout_s=TIMEOUT_S)
    some.signal(0, signal.SIGKILL)
    some.collect(LIMIT_S, [0])
    for pipe in some.pipes[1:]:
        pipe.send((join_late, ()))
    for outcome in some.collect(LIMIT_S, range(1, 4)):
        assert re.search(r"the process that holds the store at \S+ \(rank 0, .*\) has ended", outcome.text), outcome
