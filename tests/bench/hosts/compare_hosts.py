"""Measures in turns, between two hosts that are namespaces of this machine: a plain socket (sockets.c), UCX alone
(ucx_perftest of Debian's ucx-utils, where it is installed), and all-reduce through torch on gloo and on tutti, by UCX
and by tutti's own sockets, plain and encrypted. A figure is the median of the rounds of one run.

    python tests/bench/hosts/compare_hosts.py [--rounds 3] [--json FILE]

Needs what script/hosts needs. With two ranks on each host, a machine of two cores has more ranks than cores.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from hosts import Hosts, address_of, measured_or_exit  # noqa: E402

BUILD = ROOT / "build/bench_hosts"
HERE = Path(__file__).resolve().parent
SIZES = "8,65536,16777216,67108864"
WAYS = ("tutti by ucx", "tutti by tcp", "tutti by tcp encrypted", "gloo")
LIMIT_S = 300


def both(hosts, served, asked, ready=None, environment=None):
    """Runs one command on h1 and, when its output has `ready`, the other on h0. Returns the output of the latter."""
    server = hosts.start(1, served, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        while ready and ready not in (line := server.stdout.readline()):
            if not line:
                raise SystemExit(f"{served[0]} ended at once")
        client = hosts.start(0, asked, stdout=subprocess.PIPE, text=True, env=environment)
        return client.communicate(timeout=LIMIT_S)[0]
    finally:
        server.kill()
        server.communicate(timeout=10)


def sockets(hosts):
    """Returns the seconds of half a round trip of 8 bytes, and of an exchange: both hosts send 8 bytes, then both
    receive; and the bytes per second one way, and in each direction of both ways at once."""
    program = BUILD / "sockets"
    text = both(hosts, [program, "serve", "4711"], [program, "ask", address_of(1), "4711", "5"], "ready")
    found = {name: float(value) for name, value in (line.split() for line in text.splitlines())}
    return {"latency_s": found["latency"] / 1e9, "swap_s": found["swap"] / 1e9,
            "one_way": found["one_way"], "both_ways": found["both_ways"]}


def perftest(hosts, test, size, count):
    """Returns the numbers of the line of totals, among them the latency in µs and the average MB/s."""
    environment = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "UCX_TCP_TX_SEG_SIZE": "256K",
                   "UCX_TCP_RX_SEG_SIZE": "256K", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    words = ["-t", test, "-s", str(size), "-n", str(count), "-w", "100" if size < 1000 else "2", "-f"]
    text = both(hosts, ["stdbuf", "-oL", "ucx_perftest"], ["ucx_perftest", address_of(1), *words], "Waiting",
                environment)
    numbers = [line.split() for line in text.splitlines() if re.match(r"\s*(Final:)?\s*\d+ ", line)]
    return [float(word) for word in numbers[-1] if word != "Final:"]


def ucx(hosts):
    return {"latency_s": perftest(hosts, "ucp_am_lat", 8, 5000)[1] / 1e6,
            "one_way": perftest(hosts, "ucp_am_bw", 64 << 20, 20)[4] * (1 << 20)}


def allreduce(hosts, way, ranks):
    """Returns {bytes: seconds}; nothing if the run failed."""
    backend, _, rest = way.partition(" by ")
    transport, _, encrypted = rest.partition(" ")

    def command(host):
        return [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(host),
                "--master-addr", address_of(0), "--master-port", "29500", "--nproc-per-node", str(ranks),
                HERE / "allreduce.py", "--backend", backend, "--sizes", SIZES]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TUTTI_HOSTS": "",
                   "TUTTI_TRANSPORT": transport, "TUTTI_ENCRYPTION": "required" if encrypted else ""}
    text = both(hosts, command(1), command(0), environment=environment)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        print(f"all-reduce on {way}, 2 hosts x {ranks}: did not end well", file=sys.stderr)
        return {}
    return {int(size): seconds for size, seconds in json.loads(lines[0]).items()}


def case_name(way, ranks):
    """Returns the name of an all-reduce in the figures of a run. way: one of WAYS. ranks: on each host."""
    return f"{way} 2 x {ranks}"


def cases(with_ucx):
    """Returns {name: function of the hosts}, in the order in which they take turns."""
    found = {"socket": sockets, **({"ucx": ucx} if with_ucx else {})}
    for ranks in (1, 2):
        for way in WAYS:
            found[case_name(way, ranks)] = lambda hosts, w=way, r=ranks: allreduce(hosts, w, r)
    return found


def measured(rounds, with_ucx):
    """Returns the medians of the rounds, by case and figure. A case without a round that ended well has no figures."""
    samples = {}
    with Hosts(2) as hosts:
        for turn in range(rounds):
            for name, measure in cases(with_ucx).items():
                print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr)
                of_case = samples.setdefault(name, {})
                for key, value in measure(hosts).items():
                    of_case.setdefault(str(key), []).append(value)
    return {name: {key: statistics.median(values) for key, values in figures.items()}
            for name, figures in samples.items()}


def least(found, size):
    """Returns the least seconds in which two ranks can all-reduce `size` bytes over sockets: the longer of an exchange
    of 8 bytes, and all bytes in both directions at once."""
    return max(found["socket"]["swap_s"], size / found["socket"]["both_ways"])


def table(found):
    yield "| between two hosts | socket | UCX | ÷ socket |\n|---|---|---|---|"
    for name, key, show in (("8 bytes, half a round trip", "latency_s", lambda value: f"{1e6 * value:.1f} µs"),
                            ("8 bytes, both send, then both receive", "swap_s", lambda value: f"{1e6 * value:.1f} µs"),
                            ("64 MiB one way", "one_way", lambda value: f"{value / 1e9:.2f} GB/s"),
                            ("64 MiB both ways, each", "both_ways", lambda value: f"{value / 1e9:.2f} GB/s")):
        plain, other = found["socket"][key], found.get("ucx", {}).get(key)
        yield f"| {name} | {show(plain)} | " + (f"{show(other)} | {other / plain:.2f} |" if other else " | |")
    yield ("\n| all-reduce | bytes | by UCX | by sockets | encrypted | gloo | gloo ÷ UCX | gloo ÷ sockets "
           "| encrypted ÷ plain | UCX, sockets ÷ least |")
    yield "|---" * 10 + "|"
    for ranks in (1, 2):
        figures = [found[case_name(way, ranks)] for way in WAYS]
        for size in SIZES.split(","):
            times = [figure.get(size) for figure in figures]
            if all(times):
                ucx_s, tcp_s, encrypted_s, gloo_s = times
                cells = [f"{1e6 * value:,.0f} µs" for value in times]
                cells += [f"{gloo_s / ucx_s:.2f}", f"{gloo_s / tcp_s:.2f}", f"{encrypted_s / tcp_s:.2f}"]
                cells.append(f"{ucx_s / least(found, int(size)):.2f}, {tcp_s / least(found, int(size)):.2f}")
                yield f"| 2 hosts x {ranks} | {size} | " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-o", BUILD / "sockets", HERE / "sockets.c"], check=True)
    with_ucx = shutil.which("ucx_perftest") is not None
    if not with_ucx:
        print("UCX alone: SKIPPED, there is no ucx_perftest; Debian has it in ucx-utils", file=sys.stderr)
    found = measured_or_exit(measured, options.rounds, with_ucx)
    print("\n".join(table(found)))
    if options.json:
        options.json.write_text(json.dumps({"rounds": options.rounds, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
