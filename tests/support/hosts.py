"""Hosts for tests: namespaces of this machine, joined by a switch in a network namespace of its own. Each host has its
own name, processes, /proc, /sys, /dev/shm and interface eth0 (10.77.0.1 and fd77::1 for h0, and so on). To sockets,
and to tutti, they are several machines. This machine's own network does not change, and several sets can exist at once.

A host is a process in namespaces of its own, its keeper. The keeper ends when its pipe to this process closes, and all
processes of the host end with it. So nothing is left when this process ends, even if it is killed.

Needs root, or a kernel that lets users have namespaces of their own; `ip` of iproute2, `nsenter` and `unshare` of
util-linux. script/hosts is this as a command.
"""
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NETWORK, NETWORK6 = "10.77.0", "fd77:"
NOBODY = "02:77:00:00:ff:ff"                            # a hardware address that no interface has
CABLE = Path(__file__).with_name("cable.py")
# KEEPER is the script of a host's first process, whose standard input is the pipe. It becomes Python, which runs KEEP:
# the `read` of a shell would return when an orphan ends. SIGCHLD is ignored so that orphans leave no zombies.
KEEP = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.read()
"""
KEEPER = """
set -e
if [ "$1" != switch ]; then
    hostname "$1"
    mount -t sysfs sysfs /sys
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount --bind "$2" /etc/hosts
    if [ -d /run/infiniband ]; then                     # a guest of script/test-verbs: each host has one RDMA device
        mkdir -p "/run/infiniband/$1"
        mount --bind "/run/infiniband/$1" /dev/infiniband
    fi
    for what in accept_dad dad_transmits; do
        for where in default all; do echo 0 >/proc/sys/net/ipv6/conf/$where/$what || true; done
    done 2>/dev/null
fi
ip link set lo up
exec "$3" -ISc "$4"
"""


class CannotPretend(Exception):
    """This machine or this user cannot have namespaces, or a command on a host failed. The text gives the reason, and
    for namespaces the remedy."""


def measured_or_exit(measure, *arguments):
    """Returns the result of `measure`. Ends the program with the reason if there can be no hosts here."""
    try:
        return measure(*arguments)
    except CannotPretend as reason:
        raise SystemExit(f"there can be no hosts here: {reason}") from None


def name_of(host: int) -> str:
    return f"h{host}"


def address_of(host: int, ipv6: bool = False) -> str:
    return f"{NETWORK6}:{host + 1:x}" if ipv6 else f"{NETWORK}.{host + 1}"


def parent_of(process: int) -> int | None:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:                                     # it has just ended
        return None


def children_of(process: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(int(name)) == process]


def said(*command: str) -> str:
    """Runs a command, and returns its output. Raises CannotPretend with its error if it fails."""
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise CannotPretend(f"{' '.join(command)}: {run.stderr.strip() or f'ended with {run.returncode}'}")
    return run.stdout


class Started(subprocess.Popen):
    """A process on a host. Signals go to the process itself, and not to the nsenter that started it, which ends with
    the same status."""

    def inside(self) -> int | None:
        """Returns the id of the process outside of the host's namespaces; None: it has ended."""
        deadline = time.monotonic() + 5
        while self.poll() is None and time.monotonic() < deadline:
            if found := children_of(self.pid):
                return found[0]
            time.sleep(0.005)
        return None

    def send_signal(self, number: int) -> None:
        inside = self.inside()
        for process in ([inside] if inside else []) + ([self.pid] if number == signal.SIGCONT else []):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Keeper:
    """A process that holds namespaces, until its pipe is closed."""

    def __init__(self, name: str, enter: list[str], hosts_file: str, user: bool = False):
        kinds = ["--net"] if name == "switch" else ["--net", "--uts", "--ipc", "--mount", "--pid", "--mount-proc"]
        command = [*enter, "unshare", *(["--user", "--map-root-user"] if user else []), *kinds, "--fork",
                   "sh", "-c", KEEPER, "sh", name, hosts_file, sys.executable, KEEP]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True)
        if self.process.stdout.readline() != "ready\n":
            why = self.process.communicate()[1].strip()
            raise CannotPretend(f"this machine does not let us make namespaces: {why}. Run it as root, or in a "
                                "container with --privileged")
        inside = self.process.pid
        while further := children_of(inside):           # skips nsenter and unshare
            inside = further[0]
        self.inside = inside

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.kill(self.inside, signal.SIGKILL)
            self.process.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()


class Hosts:
    """`count` hosts, h0, h1, …, as a context manager. `rate` (as in 1gbit) limits what each host sends; `delay` (as in
    1ms) delays it, and `loss` (as in 1%) drops a part of it. ipv6: the hosts have only IPv6 addresses. congestion: the
    congestion control of their TCP, whatever this machine uses. "": cubic, Linux's default, or reno if namespaces may
    not use cubic. With bbr a transfer between such hosts takes twice as long (docs/decisions/ucx.md)."""

    def __init__(self, count: int, rate: str = "", delay: str = "", loss: str = "", ipv6: bool = False,
                 congestion: str = ""):
        for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
            if not shutil.which(tool):
                raise CannotPretend(f"there is no `{tool}`; Debian has it in the package {package}")
        self.count, self.ipv6 = count, ipv6
        self.keepers: list[Keeper] = []
        self.cables: dict[int, Started] = {}
        self.user = os.geteuid() != 0
        try:
            self.build(rate, delay, loss, congestion)
        except BaseException:
            self.close()
            raise

    def build(self, rate: str, delay: str, loss: str, congestion: str) -> None:
        self.switch = Keeper("switch", [], "", user=self.user)
        with tempfile.NamedTemporaryFile("w", prefix="tutti-hosts-", delete=False) as names:
            names.write("127.0.0.1 localhost\n::1 localhost\n")
            for host in range(self.count):
                names.writelines(f"{address_of(host, six)} {name_of(host)}\n" for six in self.families())
        os.chmod(names.name, 0o644)
        try:
            enter = ["nsenter", "-t", str(self.switch.inside), "-U", "--preserve-credentials"] if self.user else []
            for host in range(self.count):
                self.keepers.append(Keeper(name_of(host), enter, names.name))
        finally:
            os.unlink(names.name)
        self.on_switch("ip link add name br0 type bridge forward_delay 0 stp_state 0", "ip link set br0 up")
        for host in range(self.count):
            self.connect(host)
            self.limit(host, congestion)
        if rate or delay or loss:
            for host in range(self.count):
                self.shape(host, rate, delay, loss)

    def families(self) -> list[bool]:
        """Returns for each family of the hosts' addresses whether it is IPv6."""
        return [True] if self.ipv6 else [False, True]

    def connect(self, host: int) -> None:
        self.on_switch(f"ip link add name p{host} type veth peer name eth0 netns {self.keepers[host].inside}",
                       f"ip link set p{host} master br0 up")
        self.on_host(host, *(f"ip addr add {address_of(host, six)}/{64 if six else 24} dev eth0{' nodad' * six}"
                             for six in self.families()), "ip link set eth0 up")

    def limit(self, host: int, congestion: str) -> None:
        """Sets the congestion control of a host's TCP."""
        enter = self.entering(self.keepers[host].inside, "-n", "-m", "-p")
        for name in [congestion] if congestion else ["cubic", "reno"]:
            with contextlib.suppress(CannotPretend):
                said(*enter, "sh", "-c", f"echo {name} >/proc/sys/net/ipv4/tcp_congestion_control")
                return
        allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
        raise CannotPretend(f"TCP of a namespace cannot have {congestion or 'cubic'} here; it can have "
                            f"{', '.join(allowed)} (sysctl net.ipv4.tcp_allowed_congestion_control)")

    # ---- running things ----
    def entering(self, process: int, *kinds: str) -> list[str]:
        user = ["-U", "--preserve-credentials"] if self.user else []
        return ["nsenter", "-t", str(process), *user, *kinds, "--"]

    def on_switch(self, *commands: str) -> str:
        return "".join(said(*self.entering(self.switch.inside, "-n"), *command.split()) for command in commands)

    def on_host(self, host: int, *commands: str) -> str:
        """Runs commands on a host, one after the other, and returns their output."""
        enter = self.entering(self.keepers[host].inside, "-n", "-u", "-i", "-m", "-p")
        return "".join(said(*enter, *command.split()) for command in commands)

    def start(self, host: int, command: list[str], cwd: str | None = None, **options) -> Started:
        """Starts a process on a host. `options` are those of Popen."""
        enter = self.entering(self.keepers[host].inside, "-n", "-u", "-i", "-m", "-p")
        here = ["sh", "-c", 'cd "$0" && exec "$@"', cwd or os.getcwd()]
        return Started([*enter, *here, *map(str, command)], **options)

    def processes(self, host: int) -> list[int]:
        """Returns the ids of a host's processes, except its keeper."""
        def space(process):
            try:
                return os.readlink(f"/proc/{process}/ns/pid")
            except OSError:
                return ""
        inside = self.keepers[host].inside
        numbers = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [number for number in numbers if number != inside and space(number) == space(inside)]

    # ---- events of a network ----
    def link(self, host: int, up: bool) -> None:
        """Connects the host's interface to the switch, or disconnects it."""
        self.on_switch(f"ip link set p{host} {'up' if up else 'down'}")

    def swallow(self, one: int, other: int, swallowed: bool = True) -> None:
        """Drops all packets between these two hosts without an error, as a firewall does. swallowed: False ends
        that."""
        for here, there in ((one, other), (other, one)):
            for six in self.families():
                where = f"{address_of(there, six)} dev eth0"
                try:
                    self.on_host(here, f"ip neigh replace {where} lladdr {NOBODY} nud permanent" if swallowed
                                 else f"ip neigh del {where}")
                except CannotPretend:                   # no entry to delete
                    if swallowed:
                        raise

    def partition(self, some: set[int], parted: bool = True) -> None:
        """Drops all packets between the hosts of `some` and all other hosts. parted: False ends that."""
        for one in some:
            for other in set(range(self.count)) - some:
                self.swallow(one, other, parted)

    def shape(self, host: int, rate: str = "", delay: str = "", loss: str = "") -> None:
        """Limits the rate of the packets that a host sends, delays them, and loses a part of them; without arguments,
        none of these."""
        self.plain(host)
        words = [f"{name} {value}" for name, value in (("delay", delay), ("loss", loss)) if value]
        try:
            if words:
                limit = ["rate " + rate] if rate else []
                self.on_host(host, "tc qdisc add dev eth0 root netem limit 100000 " + " ".join(words + limit))
                return
        except CannotPretend:                           # kernels for small machines have no netem
            self.lay_cable(host, delay, loss)
        if rate:
            self.on_host(host, f"tc qdisc add dev eth0 root tbf rate {rate} burst 256k latency 100ms")

    def close_ports(self, host: int, *ranges: tuple[int, int]) -> None:
        """Drops, until plain(), the packets of new connections to these ranges of ports, to this host and from it to
        others, without an error. Connections that exist stay."""
        self.plain(host)
        self.lay_cable(host, "", ",".join(f"{first}-{last}" for first, last in ranges))

    def plain(self, host: int) -> None:
        """Ends what shape and close_ports have set for a host."""
        if host in self.cables:
            cable = self.cables.pop(host)
            cable.terminate()
            cable.wait(10)
            self.on_switch(f"ip link del c{host}", f"ip link set p{host} master br0")
        if "noqueue" not in (self.on_host(host, "tc qdisc show dev eth0") if shutil.which("tc") else "noqueue"):
            self.on_host(host, "tc qdisc del dev eth0 root")

    def lay_cable(self, host: int, delay: str, loss: str) -> None:
        """Leads the frames of a host through a process that delays and drops them (cable.py). `loss` is a part of them,
        as in 1%, or ranges of ports to close, as in 1-9,700-799."""
        self.on_host(host, f"{sys.executable} {CABLE} plain eth0")
        self.on_switch(f"ip link add name c{host} type veth peer name b{host}", f"ip link set p{host} nomaster",
                       f"ip link set b{host} master br0 up", f"ip link set c{host} up",
                       f"{sys.executable} {CABLE} plain b{host}")
        enter = self.entering(self.switch.inside, "-n")
        cable = subprocess.Popen([*enter, sys.executable, str(CABLE), "join", f"p{host}", f"c{host}", delay or "0ms",
                                  loss or "0%", str(os.getpid())], stdout=subprocess.PIPE, text=True,
                                 start_new_session=True)
        self.cables[host] = cable
        if cable.stdout.readline() != "ready\n":
            raise CannotPretend(f"the cable of {name_of(host)} did not start")
        cable.stdout.close()

    def delete(self, host: int) -> None:
        """Ends a host as if its power failed: its network is cut, and then all its processes end."""
        self.link(host, False)
        self.keepers[host].close()

    def sent_bytes(self, host: int) -> int:
        return self.counters(host)[1]

    def counters(self, host: int) -> tuple[int, int]:
        """Returns the bytes that the host's interface has received, and those that it has sent."""
        for line in Path(f"/proc/{self.keepers[host].inside}/net/dev").read_text().splitlines():
            name, _, figures = line.partition(":")
            if name.strip() == "eth0":
                return int(figures.split()[0]), int(figures.split()[8])
        raise CannotPretend(f"{name_of(host)} has no eth0")

    def close(self) -> None:
        for cable in self.cables.values():
            cable.kill()
            cable.wait(10)
        for keeper in [*self.keepers, *([self.switch] if hasattr(self, "switch") else [])]:
            if not keeper.process.stdin.closed:
                keeper.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def why_not() -> str:
    """Returns why this machine cannot have such hosts; "" if it can."""
    try:
        with Hosts(1):
            return ""
    except CannotPretend as reason:
        return str(reason)
