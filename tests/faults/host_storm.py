"""Runs many jobs over hosts that are namespaces: in each cycle ranks on several hosts join and compute, and at a random
moment some are killed, or the cable of a host is pulled. Judges how the other ranks end.

    python tests/faults/host_storm.py --cycles 200                            prints its seed
    python tests/faults/host_storm.py --hosts 3 --ranks 2 --cycles 50 --partitions 20 --seed 7

Requirements after every cycle: every survivor ended with a PeerError that names a killed rank, or a rank that it
cannot reach, within LIMIT_S; every sum until then was right; no process, no socket and no name in /dev/shm is left on
any host. Times are reported, and judged by that limit only. Needs what script/hosts needs.
"""
import argparse
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("support", "python", "hosts", "faults")]
import host_storm  # noqa: E402
import hosts as namespaces  # noqa: E402
from across import Across, Lab  # noqa: E402

# A survivor that takes longer counts as hung.
LIMIT_S = 30.0
# A process that stays longer counts as left behind. An emulated machine needs seconds to end each process.
LEAVES_S = 20.0
PEER_TIMEOUT_MS = 2000
WHAT = ("all_reduce", "large", "messages", "idle")


@dataclass
class Plan:
    """One cycle, drawn from (seed, number) alone."""
    number: int
    placement: list
    # The ranks that are killed, or the host whose cable is pulled (-1: none).
    victims: list
    silent: int
    delay_s: float
    what: str


def draw(seed, number, hosts, ranks, is_partition):
    chance = random.Random(f"{seed}/{number}")
    placement = [host for host in range(hosts) for _ in range(ranks)]
    if chance.random() < 0.3:
        chance.shuffle(placement)
    victims, silent = [], -1
    if is_partition:
        silent = chance.randrange(hosts)
    elif chance.random() < 0.2:
        lost = chance.randrange(hosts)
        victims = [rank for rank, host in enumerate(placement) if host == lost]
    else:
        victims = chance.sample(range(len(placement)), 2 if chance.random() < 0.1 and len(placement) > 2 else 1)
    return Plan(number, placement, victims, silent, chance.uniform(0, 0.3), chance.choice(WHAT))


def compute(world, what):
    """Runs operations until an error ends them. Returns its class ("wrong" for a wrong result), its text and the
    time."""
    import torch
    import torch.distributed as dist
    count = 1 << 20 if what == "large" else 1000
    try:
        while True:
            if what == "messages":
                peer, received = world.size - 1 - world.rank, torch.empty(count)
                if peer == world.rank:
                    dist.barrier()
                    continue
                works = [dist.isend(torch.full((count,), float(world.rank)), peer), dist.irecv(received, peer)]
                [work.wait() for work in works]
                right = bool((received == peer).all())
            else:
                total = torch.full((count,), world.rank + 1.0)
                dist.all_reduce(total)
                right = bool((total == world.size * (world.size + 1) / 2).all())
            if not right:
                return "wrong", f"a wrong result of {what}", time.monotonic()
            if what == "idle":
                time.sleep(0.05)
    except dist.DistBackendError as error:
        return type(error).__name__, str(error), time.monotonic()


def unreachable(plan, rank):
    """Returns the ranks that this rank may blame: the killed ones, or all on the other side of a pulled cable."""
    if plan.silent < 0:
        return plan.victims
    here = plan.placement[rank] == plan.silent
    return [other for other, host in enumerate(plan.placement) if (host == plan.silent) != here]


def judge_one(plan, rank, outcome, begin):
    """Returns the problem with the outcome of this survivor as text, or ""."""
    if outcome.failed:
        return f"rank {rank} {f'raised {outcome.trace}' if outcome.error else 'ended without an answer'}"
    kind, text, at = outcome.value
    if kind != "PeerError":
        return f"rank {rank} has no PeerError, but {kind}: {text}"
    if not any(f"rank {other} " in text + " " for other in unreachable(plan, rank)):
        return f"rank {rank} blames none of {unreachable(plan, rank)}: {text}"
    return f"rank {rank} took {at - begin:.1f} s" if at - begin > LIMIT_S else ""


def described(process):
    """Returns the name and state of a process, and where in the kernel it waits."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
        return f"{words[0]}, {words[1].split()[0]}, {Path(f'/proc/{process}/wchan').read_text()}"
    except OSError:
        return "gone since"


class Storm:
    def __init__(self, lab):
        self.lab, self.times = lab, []

    def left(self):
        """Returns the processes, names and sockets that a job has left on the hosts, without the agents that start
        ranks."""
        found = []
        for host, agent in self.lab.agents.items():
            others = set(self.lab.hosts.processes(host)) - {agent.process.inside()}
            found += [f"process {number} ({described(number)}) on h{host}" for number in others]
            found += [f"/dev/shm/{name} on h{host}" for name in self.lab.hosts.on_host(host, "ls /dev/shm").split()]
            held = self.lab.hosts.on_host(host, "cat /proc/net/unix")
            found += [f"a socket on h{host}"] * held.count("@tutti")
        return found

    def cycle(self, plan):
        """Runs one cycle. Returns its problems as texts."""
        ranks = Across(self.lab, plan.placement, environment={"TUTTI_PEER_TIMEOUT_MS": str(PEER_TIMEOUT_MS)})
        survivors = [rank for rank in range(ranks.size) if rank not in plan.victims]
        try:
            # Ranks cannot import __main__, so the function is that of the imported module.
            ranks.begin(host_storm.compute, plan.what)
            time.sleep(plan.delay_s)
            begin = time.monotonic()
            for victim in plan.victims:
                ranks.signal(victim, signal.SIGKILL)
            if plan.silent >= 0:
                self.lab.hosts.link(plan.silent, False)
            outcomes = ranks.collect(LIMIT_S + 10, survivors)
        except AssertionError as hung:
            return [str(hung)]
        finally:
            if plan.silent >= 0:
                self.lab.hosts.link(plan.silent, True)
            ranks.close()
        wrong = [judge_one(plan, rank, outcome, begin) for rank, outcome in zip(survivors, outcomes)]
        self.times += [(outcome.value[2] - begin, plan.silent >= 0) for outcome in outcomes if outcome.value]
        return [problem for problem in wrong if problem] + self.left_behind()

    def left_behind(self):
        """Returns as texts what is left after LEAVES_S."""
        deadline = time.monotonic() + LEAVES_S
        while (found := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return ["left behind: " + ", ".join(found)] if found else []


def summarise(times):
    for name, silent in (("killed", False), ("silent", True)):
        values = sorted(1e3 * seconds for seconds, was_silent in times if was_silent == silent)
        if values:
            print(f"{name}: {len(values)} survivors, milliseconds to an error: median {statistics.median(values):.0f}, "
                  f"90 % {values[len(values) * 9 // 10]:.0f}, longest {values[-1]:.0f}")


def main():
    parser = argparse.ArgumentParser(description="Kill ranks on several hosts and judge what is left.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each host (default: 2)")
    parser.add_argument("--cycles", type=int, default=50, help="cycles in which ranks are killed (default: 50)")
    parser.add_argument("--partitions", type=int, default=0, metavar="N", help="further cycles with a pulled cable")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", type=int, metavar="N", help="only cycle N of this seed")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    count = options.cycles + options.partitions
    numbers = range(count) if options.only is None else [options.only]
    begin, problems = time.monotonic(), 0
    with namespaces.Hosts(options.hosts) as some:
        lab = Lab(some)
        storm = Storm(lab)
        for number in numbers:
            plan = draw(options.seed, number, options.hosts, options.ranks, number >= options.cycles)
            try:
                wrong = storm.cycle(plan)
            # The ranks could not join.
            except AssertionError as failed:
                wrong = [str(failed)]
            problems += bool(wrong)
            if wrong or options.only is not None:
                print("\n    ".join([f"cycle {number}: {plan}", *(wrong or ["well"])]), flush=True)
        lab.close()
    summarise(storm.times)
    print(f"{len(numbers)} cycles in {time.monotonic() - begin:.0f} s, {problems} with a problem")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
