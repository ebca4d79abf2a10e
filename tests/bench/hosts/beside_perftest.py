"""Measures tutti by verbs beside perftest, which does little more than post work requests. The two hosts are namespaces
of the virtual machine of script/test-verbs, which has an RDMA device for each. In turns run: perftest, bare writes
(tests/verbs/writes.c), the core (peers.c, shared memory), and messages and all-reduces through torch (messages.py,
shared tensors). Each host has a core of its own if the machine has two. A figure is the median of the turns. A ratio is
the median of the ratios of the turns.

    script/test-verbs --seconds 500 -- python tests/bench/hosts/beside_perftest.py [--rounds 3] [--json FILE]

Needs libtutti (script/setup), a compiler, libibverbs and its headers, and Debian's perftest.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "support"), str(HERE.parent / "peers")]
import compare  # noqa: E402
import compare_hosts  # noqa: E402
from hosts import Hosts, address_of, measured_or_exit  # noqa: E402

# The bytes of small and of large messages, and of one RDMA read of tutti.
SMALL, LARGE, READ = 8, 64 << 20, 1 << 20
MIB = 1 << 20
# {figure of tutti: (its name in the table, the program of perftest with which it is compared)}
ROWS = {f"message {SMALL}": ("8 bytes one way", "ib_write_lat"),
        f"allreduce {SMALL}": ("all-reduce of 8 bytes", "ib_write_lat"),
        f"message {LARGE}": ("64 MiB one way", "ib_read_bw"),
        f"allreduce {LARGE}": ("all-reduce of 64 MiB", "ib_read_bw -b")}
LIMIT_S = 300


def on_core(host, command):
    return ["taskset", "-c", str(host % os.cpu_count()), *map(str, command)]


def perftest(hosts, program, *words):
    """Returns the numbers of the last line of output that begins with one."""
    def command(host):
        name, *more = program.split()
        return on_core(host, ["stdbuf", "-oL", name, *more, "-d", f"rxe{host}", "-x", "1", "-F", *words])
    text = compare_hosts.both(hosts, command(1), [*command(0), address_of(1)], "Waiting")
    numbers = [line.split() for line in text.splitlines() if line.split() and line.split()[0].isdigit()]
    if not numbers:
        raise SystemExit(f"{program} did not end well:\n{text}")
    return [float(word) for word in numbers[-1]]


def latency(hosts, program):
    """Returns the typical seconds of a message one way."""
    return perftest(hosts, program, "-s", str(SMALL), "-n", "1000")[4] / 1e6


def bandwidth(hosts, program):
    """Returns the seconds of 64 MiB one way. For a test in both directions, perftest prints the sum of both rates."""
    per_second = perftest(hosts, program, "-s", str(READ), "-n", str(2 * LARGE // READ))[3] * MIB
    return LARGE * (2 if "-b" in program else 1) / per_second


def alone(hosts):
    found = {name: latency(hosts, name) for name in ("ib_write_lat", "ib_send_lat", "ib_send_lat -e")}
    return found | {name: bandwidth(hosts, name) for name in ("ib_read_bw", "ib_read_bw -b", "ib_write_bw")}


def bare(hosts, folder):
    """Returns the seconds of a write of 8 bytes one way, and of an exchange: both hosts write, then both wait for the
    write of the other one. perftest does not measure that."""
    program = Path(folder) / "writes"
    text = compare_hosts.both(hosts, on_core(1, [program, "rxe1", "1", "serve", "4711"]),
                              on_core(0, [program, "rxe0", "1", "ask", address_of(1), "4711"]), "ready")
    found = dict(line.split() for line in text.splitlines())
    return {"message": float(found["latency"]) / 1e9, "allreduce": float(found["swap"]) / 1e9}


def core(hosts, program):
    """Returns the seconds of the core without torch, by name."""
    with tempfile.TemporaryDirectory() as store:
        def command(host):
            words = [program, 2, "--hosts", 2, "--rank", host, "--store", store, "shared"]
            return on_core(host, [*words, f"send and back={SMALL},{LARGE}", f"allreduce={SMALL},{LARGE}"])
        text = compare_hosts.both(hosts, command(1), command(0), environment=environment())
    lines = [line.split("\t") for line in text.splitlines()]
    if len(lines) != len(ROWS):
        raise SystemExit(f"the core did not end well:\n{text}")
    return {("message" if "back" in name else name) + f" {size}": float(ns) / 1e9 / (2 if "back" in name else 1)
            for name, size, ns, *_ in lines}


def environment(host=0):
    return {**os.environ, "TUTTI_TRANSPORT": "verbs", "TUTTI_HOSTS": "", "OMP_NUM_THREADS": "1", "RANK": str(host),
            "WORLD_SIZE": "2", "MASTER_ADDR": address_of(0), "MASTER_PORT": "29500"}


class Torch:
    """The two ranks of messages.py, which wait while other programs are measured."""

    def __init__(self, hosts):
        self.ranks = [hosts.start(host, on_core(host, [sys.executable, HERE / "messages.py"]), text=True, bufsize=1,
                                  env=environment(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                      for host in range(2)]

    def measured(self):
        for rank in self.ranks:
            rank.stdin.write("again\n")
        line = self.ranks[0].stdout.readline()
        if not line:
            raise SystemExit("a rank of torch has ended")
        return json.loads(line)

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(60)


def turns(rounds, program, folder):
    with Hosts(2) as hosts:
        begin, torch, found = time.monotonic(), Torch(hosts), []
        # The first call waits until both ranks have imported torch, which would disturb other measurements.
        torch.measured()
        for turn in range(rounds):
            found.append({"perftest": alone(hosts), "bare": bare(hosts, folder), "core": core(hosts, program),
                          "torch": torch.measured()})
            print(f"round {turn + 1} of {rounds}: {time.monotonic() - begin:.0f} s", json.dumps(found[-1]),
                  file=sys.stderr, flush=True)
        torch.close()
    return found


def table(found):
    def median(who, name):
        return statistics.median(turn[who][name] for turn in found)

    def ratio(who, name, other):
        return statistics.median(turn[who][name] / turn["perftest"][other] for turn in found)
    yield "| | perftest | µs | the core | ÷ | through torch | ÷ |\n|---|---|---|---|---|---|---|"
    for name, (said, other) in ROWS.items():
        cells = [f"{1e6 * median(who, name):,.0f} | {ratio(who, name, other):.2f}" for who in ("core", "torch")]
        yield f"| {said} | {other} | {1e6 * median('perftest', other):,.0f} | " + " | ".join(cells) + " |"
    for name, said in (("message", "one way"), ("allreduce", "both write, then both hear")):
        least = statistics.median(turn["bare"][name] for turn in found)
        ratio_of_bare = statistics.median(turn["core"][f"{name} {SMALL}"] / turn["bare"][name] for turn in found)
        yield f"bare writes of 8 bytes, {said}: {1e6 * least:,.0f} µs; the core ÷ that {ratio_of_bare:.2f}"
    rest = set(found[0]["perftest"]) - {other for _, other in ROWS.values()}
    yield "beside: " + ", ".join(f"{name} {1e6 * median('perftest', name):,.0f} µs" for name in sorted(rest))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # The files of the virtual machine are read-only.
        compare.BUILD = Path(folder)
        program = compare.programs(["tutti"]).get("tutti")
        if not program:
            return 1
        source = HERE.parents[1] / "verbs/writes.c"
        subprocess.run(["cc", "-std=gnu11", "-O2", "-o", Path(folder) / "writes", source, "-libverbs"], check=True)
        found = measured_or_exit(turns, options.rounds, program, folder)
    print("\n".join(table(found)))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
