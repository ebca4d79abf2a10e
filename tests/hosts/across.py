"""Runs ranks on several hosts that are namespaces, as tests/python/ranks.py runs ranks of one host: every rank receives
a function, and sends its outcome back. On each host an agent that has loaded torch forks the ranks, so a group takes
little time to start."""
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from hosts import address_of
from ranks import LIMIT_S, Outcome

# With HOSTS_BACKEND=gloo, tests that fail show a fault of the hosts or of the tests themselves.
BACKEND = os.environ.get("HOSTS_BACKEND", "tutti")
AGENT = Path(__file__).with_name("agent.py")
# An agent takes long to import torch on a busy machine.
READY_S = 120


class Agent:
    def __init__(self, hosts, host):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TUTTI_HOSTS="")
            self.process = hosts.start(host, [sys.executable, AGENT, theirs.fileno(), BACKEND], env=environment,
                                       pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.socket = ours
        ours.settimeout(READY_S)

    def ready(self):
        assert self.socket.recv(10) == b"{}", "the agent of a host did not start; see standard error"

    def ask(self, request, *descriptors):
        socket.send_fds(self.socket, [json.dumps(request).encode()], descriptors)
        return json.loads(self.socket.recv(1000))

    def close(self):
        self.socket.close()
        self.process.wait(10)


class Lab:
    """Hosts with an agent on each of them, which start when they are first needed."""

    def __init__(self, hosts):
        self.hosts, self.agents, self.ports = hosts, {}, itertools.count(20000)

    def agents_of(self, hosts):
        new = [host for host in sorted(set(hosts)) if host not in self.agents]
        for host in new:
            self.agents[host] = Agent(self.hosts, host)
        for host in new:
            self.agents[host].ready()
        return self.agents

    def close(self):
        for agent in self.agents.values():
            agent.close()


class Across:
    """Ranks that have joined one group: rank r is on host placement[r].

    options: backend, join=False (only the store is there), gloo=True (a second group), timeout_s, environment
    (variables of all ranks), on_host ({host: variables}), sizes ({rank: the group size that it assumes}).
    """

    def __init__(self, lab, placement, joined=True, **options):
        self.size, self.placement, self.lab = len(placement), list(placement), lab
        # operations.py of tests/python reads the hosts by this name.
        self.hosts = self.placement
        self.agents = lab.agents_of(placement)
        common, on_host = options.pop("environment", {}), options.pop("on_host", {})
        self.options = {"backend": BACKEND, "join": True, "gloo": False, "timeout_s": LIMIT_S, **options,
                        "placement": self.placement, "port": next(lab.ports),
                        "address": address_of(placement[0], lab.hosts.ipv6)}
        self.pipes, self.pids = [], []
        for rank, host in enumerate(self.placement):
            self.start(rank, host, {**common, **on_host.get(host, {})})
        self.joined = self.collect(self.options["timeout_s"] + LIMIT_S)
        if joined and any(outcome.failed for outcome in self.joined):
            self.close()
            raise AssertionError("joining failed\n" + "\n".join(failure_texts(self.joined)))

    def start(self, rank, host, environment):
        ours, theirs = socket.socketpair()
        with theirs:
            request = {"rank": rank, "options": {**self.options, "environment": environment}}
            self.pids.append(self.agents[host].ask(request, theirs.fileno())["pid"])
        self.pipes.append(Connection(ours.detach()))

    def signal(self, rank, number):
        self.agents[self.placement[rank]].ask({"pid": self.pids[rank], "number": int(number)})

    def collect(self, limit_s, ranks=None):
        """Returns an outcome of each rank. Kills all ranks and raises AssertionError if one does not answer in time."""
        until, outcomes = time.monotonic() + limit_s, []
        for rank in range(self.size) if ranks is None else ranks:
            if not self.pipes[rank].poll(max(0, until - time.monotonic())):
                self.kill()
                raise AssertionError(f"rank {rank} of {self.size} did not answer in {limit_s} s; see standard error")
            try:
                outcomes.append(self.pipes[rank].recv())
            except (EOFError, ConnectionResetError):
                outcomes.append(Outcome(died=-1))
        return outcomes

    def begin(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def outcomes(self, function, *arguments, limit_s=LIMIT_S):
        self.begin(function, *arguments)
        return self.collect(limit_s)

    def run(self, function, *arguments, limit_s=LIMIT_S):
        """Runs a function on every rank, where it must succeed. Returns its values by rank."""
        outcomes = self.outcomes(function, *arguments, limit_s=limit_s)
        assert not any(outcome.failed for outcome in outcomes), "\n".join(failure_texts(outcomes))
        return [outcome.value for outcome in outcomes]

    def kill(self):
        """Makes the ranks print where their threads are, and kills them."""
        for rank in range(self.size):
            self.signal(rank, signal.SIGCONT)
            self.signal(rank, signal.SIGUSR1)
        time.sleep(0.3)
        for rank in range(self.size):
            self.signal(rank, signal.SIGKILL)
        for pipe in self.pipes:
            pipe.close()

    def close(self):
        """Lets the ranks leave the group, and waits until they have ended. Kills those that take too long."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                if not pipe.closed:
                    pipe.send(None)
        until = time.monotonic() + 10
        for rank, pipe in enumerate(self.pipes):
            with contextlib.suppress(OSError, EOFError):
                while not pipe.closed and pipe.poll(max(0, until - time.monotonic())):
                    pipe.recv()
            if not pipe.closed:
                # The agent ignores a rank that has ended.
                self.signal(rank, signal.SIGKILL)
                pipe.close()


def await_status(lab, host, *patterns):
    """Returns what `tutti status` prints on a host, once it has lines with these patterns."""
    until = time.monotonic() + LIMIT_S
    while True:
        report = lab.hosts.on_host(host, f"{sys.executable} -m torch_tutti status")
        if all(re.search(pattern, report) for pattern in patterns):
            return report
        assert time.monotonic() < until, f"{patterns}\n{report}"


def failure_texts(outcomes):
    return [f"---- rank {r} ----\n{o.trace or f'died with {o.died}'}" for r, o in enumerate(outcomes) if o.failed]


def failures(outcomes, kind, *pieces):
    """Asserts that all outcomes are errors of this class, and that their texts have all pieces."""
    for number, outcome in enumerate(outcomes):
        what = f"number {number}: {outcome.error or outcome.value}: {outcome.text}\n{outcome.trace}"
        assert outcome.error == kind, what
        for piece in pieces:
            assert piece in outcome.text, f"number {number}: {piece!r} is not in: {outcome.text}"
