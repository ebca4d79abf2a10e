"""Runs ranks on several hosts that are namespaces for a long time: they make collectives and messages of random sizes,
compare every result with the expected one, and make and destroy a group in every round. The resources of each rank are
recorded.

    python tests/faults/host_soak.py --minutes 60                 four hosts of one rank; prints its seed
    python tests/faults/host_soak.py --hosts 2 --ranks 2 --minutes 5 --seed 7

Requirements: no result is wrong; at the end a rank has no more descriptors and threads than after the first rounds,
and at most GROWTH_KIB more resident memory, because the allocator keeps freed memory. Needs what script/hosts needs.
"""
import argparse
import contextlib
import os
import random
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / name) for name in ("support", "python", "hosts", "faults")]
import host_soak  # noqa: E402
import hosts as namespaces  # noqa: E402
from across import Across, Lab  # noqa: E402

# The steps of a round; one of LARGE_EVERY has a tensor of several tiles.
STEPS, LARGE_EVERY = 200, 50
# The caches of a rank fill in these rounds.
FIRST_ROUNDS = 5
GROWTH_KIB = 16 << 10
# The C library maps larger tensors one by one, and unmaps them when they are freed, so they leave no holes in the heap.
MAPPED_BYTES = 1 << 20
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "messages")


def content(step, rank, count):
    """Returns the input of a rank at a step, int32 [count]. It follows from the step and the rank, so every rank can
    compute the inputs of all."""
    import torch
    return torch.arange(count, dtype=torch.int32) * (2 * rank + 3) + step * 7919 + rank


def carry_out(kind, step, count, rank, size, group):
    """Runs one operation. Returns the result of this rank, and the expected one."""
    import torch
    import torch.distributed as dist
    mine, of = content(step, rank, size * count), lambda r: content(step, r, size * count)
    part = slice(rank * count, (rank + 1) * count)
    if kind == "all_reduce":
        dist.all_reduce(mine, group=group)
        return mine, sum(of(r) for r in range(size))
    if kind == "reduce_scatter":
        out = torch.empty(count, dtype=torch.int32)
        dist.reduce_scatter_single(out, mine, group=group)
        return out, sum(of(r)[part] for r in range(size))
    if kind == "broadcast":
        dist.broadcast(mine, step % size, group=group)
        return mine, of(step % size)
    out = torch.empty(size * count, dtype=torch.int32)
    if kind == "all_gather":
        dist.all_gather_single(out, mine[:count].clone(), group=group)
        return out, torch.cat([of(r)[:count] for r in range(size)])
    if kind == "all_to_all":
        dist.all_to_all_single(out, mine, group=group)
        return out, torch.cat([of(r)[part] for r in range(size)])
    before, after = (rank - 1) % size, (rank + 1) % size
    for work in [dist.isend(mine, after, group=group), dist.irecv(out, before, group=group)]:
        work.wait()
    return out, of(before)


def held():
    """Returns the descriptors, threads and resident KiB of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])


def work(world, seed, number):
    """Runs one round on one rank. Returns its wrong results as texts, and the resources that the rank holds then."""
    import torch
    import torch.distributed as dist
    chance, wrong = random.Random(f"{seed}/{number}"), []
    groups = [None, dist.new_group()]
    for step in range(STEPS):
        exponent = chance.uniform(19, 21) if step % LARGE_EVERY == 0 else chance.uniform(0, 17)
        kind, count = chance.choice(KINDS), int(2 ** exponent)
        group = groups[chance.random() < 0.1]
        got, expected = carry_out(kind, step + number * STEPS, count, world.rank, world.size, group)
        if not torch.equal(got, expected):
            wrong.append(f"rank {world.rank}, round {number}, step {step}: {kind} of {count} elements")
    dist.destroy_process_group(groups[1])
    return wrong, held()


def soak(ranks, seed, minutes):
    """Runs rounds for that many minutes. Returns the wrong results as texts, and for each round the resources of each
    rank."""
    begin, wrong, rounds = time.monotonic(), [], []
    while time.monotonic() - begin < 60 * minutes or len(rounds) < 2 * FIRST_ROUNDS:
        outcomes = ranks.run(host_soak.work, seed, len(rounds), limit_s=300)
        wrong += [problem for problems, _ in outcomes for problem in problems]
        rounds.append([what for _, what in outcomes])
        if (len(rounds) & (len(rounds) - 1)) == 0 or len(rounds) % 100 == 0:
            say(len(rounds), time.monotonic() - begin, rounds[-1])
    say(len(rounds), time.monotonic() - begin, rounds[-1])
    return wrong, rounds


def say(count, seconds, what):
    texts = [f"{descriptors}/{threads}/{kib / 1024:.1f}" for descriptors, threads, kib in what]
    print(f"round {count}, {seconds:.0f} s: descriptors/threads/MiB of each rank {' '.join(texts)}", flush=True)


def grown(rounds):
    """Returns a text for each rank and resource of which the rank has more at the end than after the first rounds."""
    found = []
    for rank in range(len(rounds[0])):
        early = [what[rank] for what in rounds[FIRST_ROUNDS:2 * FIRST_ROUNDS]]
        late = [what[rank] for what in rounds[-FIRST_ROUNDS:]]
        for place, (name, margin) in enumerate([("descriptors", 0), ("threads", 0), ("KiB of memory", GROWTH_KIB)]):
            before, after = (max(what[place] for what in some) for some in (early, late))
            if after > before + margin:
                found.append(f"rank {rank} has {after} {name}, and had {before}")
    return found


def main():
    parser = argparse.ArgumentParser(description="Compute for long on several hosts, and watch what ranks hold.")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1, help="ranks of each host (default: 1)")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(MAPPED_BYTES))
    placement = [host for host in range(options.hosts) for _ in range(options.ranks)]
    with namespaces.Hosts(options.hosts) as some, contextlib.closing(Lab(some)) as lab, \
            contextlib.closing(Across(lab, placement)) as ranks:
        wrong, rounds = soak(ranks, options.seed, options.minutes)
    more = grown(rounds)
    print("\n".join([*wrong[:20], *more]))
    print(f"{len(rounds) * STEPS} operations in {len(rounds)} rounds: {len(wrong)} wrong, {len(more)} things grown")
    return 1 if wrong or more else 0


if __name__ == "__main__":
    sys.exit(main())
