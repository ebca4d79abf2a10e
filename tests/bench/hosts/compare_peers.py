"""Compares tutti with Open MPI and MPICH in C, between two hosts that are namespaces of this machine: by the program
and the rules of peers/compare.py, in turns, first with one rank on each host, then with two. Both MPI libraries are set
to use TCP between hosts and shared memory on one. With more ranks than cores, the ranks of a host share a core, and
MPICH is left out, because it never yields a core for which others wait. Every result is checked, and so is that the
bytes went over the network.

    python tests/bench/hosts/compare_peers.py [--rounds 3] [--per-host 1,2] [--sizes 8,4096,…] [--json FILE]

Needs what script/hosts needs, libtutti (script/setup) and, of those that are to be compared, Debian's openmpi-bin and
libopenmpi-dev, mpich and libmpich-dev. mpirun runs on the switch between the hosts, as on a machine beside them.
"""
import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parent / "peers")]
import compare  # noqa: E402
from hosts import NETWORK, Hosts, address_of, measured_or_exit  # noqa: E402

HOSTS = 2
SIZES = "8,4096,65536,1048576,16777216,67108864"
FLOAT_BYTES = 4
# The options with which nsenter enters the namespaces of a host.
INSIDE = ("-n", "-u", "-i", "-m", "-p")
# The calls of each row at least: one is checked, one is timed to choose the number of samples, two warm up, and five
# are samples.
LEAST_CALLS = 9
# The bytes that a collective sends between hosts at least, as a part of the row's bytes (all_to_all: for each rank).
LEAST_SENT = {"allreduce": 2, "allreduce, out of place": 2, "reduce_scatter": 1, "allgather": 1, "broadcast": 1,
              "reduce": 1, "all_to_all": 0.5, "gather": 0.5, "scatter": 0.5, "send and back": 2}
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "--map-by", "slot",
            "--mca", "pml", "ob1", "--mca", "btl", "tcp,self,vader",
            "--mca", "btl_tcp_if_include", f"{NETWORK}.0/24", "--mca", "oob_tcp_if_include", f"{NETWORK}.0/24"]
MPICH = ["env", "UCX_TLS=tcp,sm,self", "UCX_NET_DEVICES=eth0", "mpirun.mpich", "-launcher", "rsh", "-iface", "br0"]


# ---- how ranks are started ----
def agent(hosts):
    """Returns the lines of a shell script that mpirun uses in place of rsh. Its arguments are options, a host, and
    words for a shell there. It runs in the user namespace of the hosts, if they have one, so it need not enter that."""
    lines = ['while [ "${1#-}" != "$1" ]; do shift; done', "host=$1; shift", "case $host in"]
    for host in range(HOSTS):
        enter = ["nsenter", "-t", str(hosts.keepers[host].inside), *INSIDE, "--"]
        lines.append(f'{address_of(host)}) exec {shlex.join(enter)} sh -c "$*" ;;')
    return [*lines, "esac", 'echo "there is no host $host" >&2; exit 1']


def of_tutti(hosts, program, per_host, kind=""):
    """Returns the lines of a shell script that starts a process for each rank, and waits for all of them."""
    ranks, lines, waits = HOSTS * per_host, [], []
    for rank in reversed(range(ranks)):
        enter = hosts.entering(hosts.keepers[rank // per_host].inside, *INSIDE)
        words = [*enter, program, str(ranks), "--hosts", str(HOSTS), "--rank", str(rank)]
        lines.append(f'{shlex.join(words)} --store "$store" {kind} "$@" & p{rank}=$!')
        waits.append(f"wait $p{rank} || status=1")
    return [*lines, *waits]


def of_mpi(hosts, program, per_host, start):
    ranks = HOSTS * per_host
    words = [*hosts.entering(hosts.switch.inside, "-n"), *start, program, str(ranks), "--hosts", str(HOSTS)]
    return [f'{shlex.join(words)} --store "$store" "$@" || status=1']


def script(path, lines):
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def starting(lines):
    """Returns the lines with others around them, which make a directory through which the ranks find each other."""
    return ["store=$(mktemp -d) && trap 'rm -r \"$store\"' EXIT || exit", "status=0", *lines, "exit $status"]


def commands(hosts, folder, per_host, shared, alone):
    """Returns {library: command}: a script that starts its program, and takes collectives and sizes as arguments."""
    rsh = script(folder / "rsh", agent(hosts))
    ranks, places = str(HOSTS * per_host), [f"{address_of(host)}:{per_host}" for host in range(HOSTS)]
    crowded = HOSTS * per_host > os.cpu_count()
    built, found = compare.programs(["tutti"] if alone else None), {}
    if program := built.get("tutti"):
        found["tutti"] = of_tutti(hosts, program, per_host)
        if shared:
            found["tutti, shared"] = of_tutti(hosts, program, per_host, "shared")
    if program := built.get("Open MPI"):
        found["Open MPI"] = of_mpi(hosts, program, per_host, [
            *OPEN_MPI, "--mca", "mpi_yield_when_idle", str(int(crowded)), "--mca", "plm_rsh_agent", rsh,
            "-np", ranks, "-host", ",".join(places)])
    if crowded and built.pop("MPICH", None):
        print(f"MPICH: SKIPPED with {per_host} ranks to a host, as it never yields a core that others wait for",
              file=sys.stderr)
    if program := built.get("MPICH"):
        found["MPICH"] = of_mpi(hosts, program, per_host, [
            *MPICH, "-launcher-exec", rsh, "-np", ranks, "-hosts", ",".join(places)])
    return {library: [script(folder / f"{library} x {per_host}", starting(lines))] for library, lines in found.items()}


# ---- what is measured ----
def rows_of(per_host, names, sizes):
    """Returns (collective, bytes) for each row. Small sizes are raised, so that every rank has an element."""
    ranks = HOSTS * per_host
    return [(name, size) for name in names for size in dict.fromkeys(max(size, FLOAT_BYTES * ranks) for size in sizes)]


def least_sent(wanted, per_host):
    """Returns the bytes that all calls of these rows send between the two hosts at least."""
    return LEAST_CALLS * sum(size * LEAST_SENT[name] * (HOSTS * per_host if name == "all_to_all" else 1)
                             for name, size in wanted)


def watched(hosts, per_host):
    """Returns a function that runs a library's program once, as compare.measured does, and ends the program if fewer
    bytes went over the network than the rows need."""
    def run(library, command, wanted):
        print(f"{HOSTS} hosts x {per_host}: {library}, {len(wanted)} rows", file=sys.stderr)
        before = sum(hosts.sent_bytes(host) for host in range(HOSTS))
        found = compare.measured(library, command, wanted)
        sent, least = sum(hosts.sent_bytes(host) for host in range(HOSTS)) - before, least_sent(wanted, per_host)
        if sent < least:
            raise SystemExit(f"{library} has sent {sent} bytes between hosts, and needs {least:.0f} at least: what was "
                             "measured is not the network")
        return found
    return run


def measured(options):
    """Returns {ranks of a host: rows}."""
    found, sizes = {}, [int(size) for size in options.sizes.split(",")]
    with Hosts(HOSTS) as hosts, tempfile.TemporaryDirectory() as folder:
        hosts.on_switch(f"ip addr add {NETWORK}.254/24 dev br0")
        for per_host in map(int, options.per_host.split(",")):
            started = commands(hosts, Path(folder), per_host, options.shared, options.alone)
            wanted = rows_of(per_host, options.only or compare.COLLECTIVES, sizes)
            found[per_host] = compare.measure(started, wanted, options.rounds, options.more, watched(hosts, per_host))
    return found


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--more", type=int, default=2, help="further rounds for rows that do not compare, default: 2")
    parser.add_argument("--per-host", default="1,2", help="ranks of each host, default: 1,2")
    parser.add_argument("--sizes", default=SIZES, help=f"bytes, default: {SIZES}")
    parser.add_argument("--only", action="append", choices=compare.COLLECTIVES, help="this collective; may be repeated")
    parser.add_argument("--shared", action="store_true", help="also tutti on shared tensors")
    parser.add_argument("--alone", action="store_true", help="tutti only")
    parser.add_argument("--json", type=Path, help="also write what was measured into this file")
    return parser.parse_args()


def main():
    options = parse()
    found = measured_or_exit(measured, options)
    for per_host, rows in found.items():
        print(f"\n{HOSTS} hosts x {per_host}\n\n" + "\n".join(compare.table(rows)))
    if options.json:
        options.json.write_text(json.dumps({"rounds": options.rounds, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
