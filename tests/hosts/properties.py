"""Random programs (tests/python/random_programs.py) on ranks of several hosts that are namespaces: two, three or four,
with one to three ranks each, placed in any order. The results of every rank must be bit-identical to the model's.

    python tests/hosts/properties.py --cases 10000                prints its seed
    python tests/hosts/properties.py --placement 0,1,1 --program "[Step('broadcast', shape=(5,)), Step('barrier')]"

A case is a program of 1 to 24 operations. Programs that share a placement share its ranks, and the length of tiles,
which is drawn (0: chosen by cost). A failing program is shrunk and printed with a command that runs it again. Over more
than two hosts only sums are drawn that are the same in any order of adding.
"""
import argparse
import collections
import contextlib
import itertools
import random
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "python"), str(HERE)]
import hosts as namespaces  # noqa: E402
import random_programs  # noqa: E402
from across import Across, Lab  # noqa: E402
from model import Step  # noqa: E402
from operations import verdict  # noqa: E402

# The programs of one placement.
PROGRAMS = 10
TILES = ("0", "0", "4096", "65536")


def drawn_placement(seed):
    """Returns a placement, one to three ranks on each of two to four hosts, in blocks half of the time; and the length
    of tiles."""
    chance = random.Random(seed)
    placement = [host for host in range(chance.randint(2, 4)) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.5:
        chance.shuffle(placement)
    return placement, chance.choice(TILES)


class Kept:
    """The ranks of one placement. They are started again after a program has broken them."""

    def __init__(self, lab, placement, tile):
        self.lab, self.placement, self.tile, self.ranks = lab, placement, tile, None

    def now(self):
        if not self.ranks or any(pipe.closed for pipe in self.ranks.pipes):
            self.close()
            self.ranks = Across(self.lab, self.placement, environment={"TUTTI_TILE_BYTES": self.tile})
        return self.ranks

    def close(self):
        if self.ranks:
            self.ranks.close()


def on_one_placement(lab, seed, count):
    """Checks programs on one placement, and returns both. Raises AssertionError for the first wrong program."""
    (placement, tile), hung = drawn_placement(seed), {}
    again = (f"TUTTI_TILE_BYTES={tile} python tests/hosts/properties.py "
             f"--placement {','.join(map(str, placement))} --program")
    some_programs = random_programs.programs(ordered=len(set(placement)) < 3)
    with contextlib.closing(Kept(lab, placement, tile)) as kept:
        return placement, random_programs.one_round(seed, some_programs, lambda program: random_programs.check(
            kept.now, again, hung, program), count)


def check(lab, seed, cases):
    """Checks programs in rounds, each on another placement. Returns the number of wrong rounds."""
    begin, wrong, tally = time.monotonic(), 0, collections.Counter()
    for number in itertools.count():
        if tally["cases"] >= cases:
            break
        try:
            placement, done = on_one_placement(lab, seed + number, min(PROGRAMS, cases - tally["cases"]))
        except Exception:
            wrong += 1
            tally["cases"] += PROGRAMS
            traceback.print_exc()
            continue
        tally.update({"cases": len(done), "operations": sum(map(len, done)), "placements": 1,
                      f"on {len(set(placement))} hosts": len(done)})
    counted = ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
    print(f"{counted}: {wrong} placements with a problem, {time.monotonic() - begin:.0f} s", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description="Random programs on random placements over namespaces.")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6) * 1000)
    parser.add_argument("--placement", help="the host of each rank, for --program")
    parser.add_argument("--program", help="only this program")
    options = parser.parse_args()
    with namespaces.Hosts(4) as some, contextlib.closing(Lab(some)) as lab:
        if options.program:
            placement = [int(host) for host in options.placement.split(",")]
            with contextlib.closing(Across(lab, placement)) as ranks:
                wrong = verdict(ranks, eval(options.program, {"Step": Step}))
            print("\n".join(wrong) or "all as it must be")
        else:
            print(f"seed {options.seed}", flush=True)
            wrong = check(lab, options.seed, options.cases)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
