"""Draws random training programs: a model and the type of its parameters, an optimizer, a way into zero with its
options, and events like hooks, clipping, freezing, accumulation, uneven data, checkpoints and exceptions
(training_events.py). Each program runs with DistributedDataParallel and with zero beside it, and both must have the
same losses, norms and parameters after each step, and the same optimizer state at the end.

    python tests/python/random_training.py --programs 10000 --ranks 2 --first-seed 1
"""
import argparse
import collections
import random
import tempfile

import torch
from ranks import Ranks
from training import flat, same_on_all_ranks
from training_events import AFTER, BEFORE, MODELS, MORE_OPTIMIZERS, PRECISIONS, WITHIN, Side, has_float32_values

# ways and types of parameters, the common ones more often
WAYS = ("shard",) * 9 + ("wrap_ddp", "several", "several", "late", "late", "late", "sharded", "sharded")
KINDS = ("float32",) * 8 + ("float64", "float64", "bfloat16", "bf16", "bf16", "fp16", "autocast", "autocast")
IN_C = ("adamw", "adam", "momentum", "sgd", "fused")
# Those that DistributedDataParallel's side steps with the same bits.
EXACT_WAYS = ("shard", "wrap_ddp", "several", "sharded")


# ---- drawing ----
def draw_options(draw, stages, may_shard=True):
    """Returns arguments of zero.shard."""
    options = {"stage": draw.choice(stages)}
    if options["stage"] == 3 and draw.random() < 0.6:
        options["hosts"] = draw.choice(("shared", "sharded", "sharded") if may_shard else ("shared",))
    if draw.random() < 0.3:
        options["ahead"] = True
    if draw.random() < 0.3:
        options["buffers"] = draw.choice((1, 2, 5))
    if options.get("hosts") == "sharded" and draw.random() < 0.5:
        options |= {"prefetch": draw.choice((0, 1, 3)), "reshard": draw.random() < 0.5}
    return options


def draw_way(draw, program):
    """Sets way, optimizers and options of a program."""
    way = program["way"] = draw.choice(WAYS)
    if way == "sharded" and program["type"] in PRECISIONS:
        program["type"] = "bfloat16"
    # ranks that use different modules of a sharded model get an error, and Picky's do
    may_shard = program["model"] != "picky" and way != "several"
    one = [name for name in MORE_OPTIMIZERS if name != "muon"]
    program["optimizers"] = [draw.choice(one)]
    if way == "several":
        program["optimizers"] = [draw.choice([*one, "muon", "muon"]), draw.choice(one)]
        program["model"] = draw.choice([name for name in MODELS if name != "words"])    # which has only matrices
    program["options"] = draw_options(draw, (0, 1, 2, 3, 3, 3), may_shard)
    program["later options"] = draw_options(draw, (0, 1, 2, 3, 3), may_shard)
    if way == "late":
        program["options"].pop("ahead", None)
        if program["options"]["stage"] == 0:
            program["options"] = {"stage": 0}
        elif draw.random() < 0.5:
            program["options"]["gradients"] = "whole"
    if way == "sharded":
        program["options"] = {"average": draw.random() < 0.5}
    if program["type"] in PRECISIONS and program["options"] == {"stage": 0} and way == "late":
        program["type"] = "bfloat16"
    for options in (program["options"], program["later options"]) if program["type"] in PRECISIONS else ():
        options["precision"] = program["type"]
    is_in_c = program["type"] != "float64" and all(name in IN_C for name in program["optimizers"])
    program["in file"] = way in ("shard", "several", "wrap_ddp") and is_in_c and draw.random() < 0.2


def draw_step(draw, program):
    """Returns the events of a step, {name: number that selects its details}."""
    is_narrow = has_float32_values(program)
    way, absent = program["way"], set(program["absent"])
    if program["options"].get("gradients") == "whole":
        absent.add("passes")
    if is_narrow:
        absent.add("load other")
    events = [*draw.sample(BEFORE, draw.choice((0, 0, 1, 1, 2))), *draw.sample(WITHIN, draw.choice((0, 0, 0, 1))),
              *draw.sample(AFTER, draw.choice((0, 0, 1, 1, 2)))]
    is_uneven = way in ("shard", "wrap_ddp") and "uneven" not in absent and draw.random() < 0.1
    if is_uneven:
        absent |= {*WITHIN, *AFTER}
        events.append("uneven")
    if is_narrow and "clip by method" in events:
        absent |= {"clip values", "scale", "norm"}
    return {name: draw.randrange(1000) for name in events if name not in absent}


def find_absent(draw, program):
    """Returns the events that zero does not have, or has in another way, in this program."""
    way, absent = program["way"], []
    if way in ("several", "late"):
        absent += ["divide again", "add group", "unshard"]
    if way == "wrap_ddp":
        absent += ["unshard"]
    if way == "sharded":
        absent += ["divide again", "unshard"]
    if program["type"] in PRECISIONS:                    # parameters that are not trained keep their type
        absent += ["divide again", "add group", draw.choice(("freeze", "unshard"))]
    if program["type"] != "autocast":
        absent += ["overflow"]
    # in join() DistributedDataParallel gives zeros to Picky's experts that a rank without a batch has used before
    if program["type"] in ("autocast", "fp16") or program["own"] or program["model"] == "picky" or "sharded" in (
            program["options"].get("hosts"), program["later options"].get("hosts")):
        absent += ["uneven"]
    return absent


def draw_program(seed):
    """Returns a program as plain data."""
    draw = random.Random(seed)
    program = {"model": draw.choice(list(MODELS)), "type": draw.choice(KINDS), "groups": draw.choice((1, 1, 2, 3)),
               "channels_last": draw.random() < 0.3, "frozen": [], "late parameters": []}
    draw_way(draw, program)
    if program["type"] not in PRECISIONS and program["way"] != "several" and draw.random() < 0.3:
        program["frozen"] = [draw.randrange(100) for _ in range(2)]
        if program["way"] in ("shard", "wrap_ddp", "sharded"):
            program["late parameters"] = [draw.randrange(100)]
    program["own"] = (program["way"] in ("shard", "several", "late") and draw.random() < 0.15
                      and program["type"] in ("float32", "float64"))
    program["absent"] = find_absent(draw, program)
    program["steps"] = [draw_step(draw, program) for _ in range(draw.randint(2, 5))]
    return program


# ---- comparing ----
# Where the bits may differ: the relative and absolute difference of parameters; the difference between the changes of
# all parameters in a step, as a part of the change, and of the parameters' norm; the relative difference of losses and
# norms. Those of float32 and float64 are some hundred roundings (norms are float32); with 16 bits a rounding of one
# parameter may be another one.
# With 16 bits a gradient near zero may have another sign: of several passes and of clipped gradients both sides round
# sums at other points, by one unit in the last place. Adam and RMSprop divide by the size of the gradient, so such a
# parameter moves as far as any other, in another direction. `strays` is the part of the parameters that may do so; seen
# was 1 of 4,096.
Tolerance = collections.namedtuple("Tolerance", "relative absolute change rounding seen strays")
TOLERANCES = collections.defaultdict(lambda: Tolerance(1e-4, 2e-5, 1e-3, 1e-6, 1e-4, 0), {
    "float64": Tolerance(1e-10, 1e-11, 1e-9, 1e-13, 1e-6, 0),
    "autocast": Tolerance(2 ** -8, 2 ** -9, 0.1, 1e-6, 2 ** -7, 0.001),
    "fp16": Tolerance(2 ** -8, 2 ** -9, 0.1, 1e-6, 2 ** -7, 0.001),
    "bf16": Tolerance(2 ** -5, 2 ** -6, 0.2, 1e-6, 2 ** -4, 0.001),
    "bfloat16": Tolerance(2 ** -5, 2 ** -6, 0.2, 1e-6, 2 ** -4, 0.001)})


def is_exact_step(program, events):
    """Returns whether zero computes a step with the bits of DistributedDataParallel: it scales gradients that are
    clipped in another order, and adds later passes apart."""
    return "passes" not in events and "uneven" not in events and not any("clip" in name for name in events)


def run_program(world, program):
    """Runs a program in both ways. Raises AssertionError if they differ."""
    with tempfile.TemporaryDirectory() as folder:
        if program["in file"]:
            for options in (program["options"], program["later options"]):
                options["state_directory"] = folder
        sides = [Side(world, program, is_zero) for is_zero in (False, True)]
        sides[0].other, sides[1].other = sides[1], sides[0]
        compare_steps(world, program, sides)


def compare_steps(world, program, sides):
    is_exact = program["way"] in EXACT_WAYS and "fused" not in program["optimizers"]
    # its means are sums in the order of memory, which zero does not keep
    is_exact = is_exact and not ("adafactor" in program["optimizers"] and program["channels_last"])
    # Muon computes in bfloat16, which makes one rounding of a gradient a difference of 16 bits
    kind = "autocast" if "muon" in program["optimizers"] and program["type"] == "float32" else program["type"]
    allowed, is_narrow = TOLERANCES[kind], has_float32_values(program)
    before = None                       # the values of both sides, if they were compared
    # the values after the last step, and how far two parameters that go in opposite directions may be apart by now
    last, apart = flat(sides[0].model.parameters()), 0.0
    for step, events in enumerate(program["steps"]):
        (theirs, their_all, seen), (mine, my_all, my_seen) = (side.run_step(events, step) for side in sides)
        is_exact = is_exact and is_exact_step(program, events)
        # training that diverges multiplies each difference
        if not is_exact and not their_all.abs().max() < 100 and not my_all.abs().max() < 100:
            return
        apart += 2 * (their_all - last).abs().max().item()
        last = their_all
        close = {"rtol": 0, "atol": 0} if is_exact else {"rtol": allowed.relative, "atol": allowed.absolute}
        without_strays = my_all if is_exact else replace_strays(my_all, their_all, close, apart, allowed.strays)
        torch.testing.assert_close(without_strays, their_all, **close,
                                   msg=lambda text: f"step {step}: parameters: {text}")
        torch.testing.assert_close(torch.tensor(my_seen), torch.tensor(seen), rtol=allowed.seen, atol=1e-6,
                                   equal_nan=True, msg=lambda text: f"step {step}: losses and norms: {text}")
        same_on_all_ranks(world, mine)
        if not is_exact:
            current = values_of_optimizers(sides) if is_narrow else [their_all, my_all]
            if before is not None and len(before[0]) == len(current[0]) > 0:
                compare_changes(step, before, current, allowed)
            before = current
    compare_states(sides, is_exact, allowed)


def replace_strays(mine, theirs, close, apart, most):
    """Returns `mine` with the values of `theirs` where they are not close, but not further apart than `apart`. If that
    is more than the part `most` of all, returns `mine`."""
    strays = ~torch.isclose(mine, theirs, **close) & ((mine - theirs).abs() <= apart)
    return torch.where(strays, theirs, mine) if strays.sum() <= most * strays.numel() else mine


def values_of_optimizers(sides):
    """Returns the float32 values that both sides keep beside their parameters, as a vector of each side."""
    found = [side.values_in("master") for side in sides]
    common = sorted(found[0].keys() & found[1].keys())
    return [flat(values[key] for key in common) if common else torch.empty(0) for values in found]


def compare_changes(step, before, after, allowed):
    """Both sides change their values in the same way. before, after: the values of both sides."""
    theirs, mine = (each - earlier for each, earlier in zip(after, before))
    difference, most = (mine - theirs).norm(), allowed.change * theirs.norm() + allowed.rounding * after[0].norm()
    assert difference <= most, f"step {step}: changes of norm {theirs.norm()} differ by {difference} of {most} allowed"


def value_of_state(state, name, is_exact):
    """Returns a value of an optimizer's state of a parameter. RMSprop adds up gradients that it divides by their size,
    so a gradient that one side rounds to zero can make the largest sum on the other. If the bits may differ, such sums
    are multiplied by the relative size of their gradients."""
    if is_exact or name != "momentum_buffer" or "square_avg" not in state:
        return state[name]
    squares = state["square_avg"].float()
    return state[name].float() * (squares / squares.max().clamp(min=1e-30)).sqrt()


def compare_states(sides, is_exact, allowed):
    """The optimizers have the same states at the end. Those of strays differ by at most twice the largest value."""
    close = {"rtol": 0, "atol": 0} if is_exact else {"rtol": 100 * allowed.relative, "atol": allowed.absolute}
    for theirs, mine in zip(*(side.way.optimizers for side in sides)):
        theirs, mine = theirs.state_dict()["state"], mine.state_dict()["state"]
        common = [(number, name) for number in theirs.keys() & mine.keys()
                  for name in theirs[number].keys() & mine[number].keys() if torch.is_tensor(theirs[number][name])]
        for name in {name for _, name in common}:
            numbers = sorted(number for number, other in common if other == name)
            right, found = (flat(value_of_state(side[number], name, is_exact) for number in numbers)
                            for side in (theirs, mine))
            if not is_exact:
                found = replace_strays(found, right, close, 2 * right.abs().max().item(), allowed.strays)
            torch.testing.assert_close(found, right, **close, msg=lambda text: f"state {name} of {numbers}: {text}")


def run_seeds(world, seeds):
    """Runs the programs of these seeds. The error of a failing one has the program."""
    for seed in seeds:
        program = draw_program(seed)
        try:
            run_program(world, program)
        except BaseException as problem:
            raise AssertionError(f"seed {seed}: {program}") from problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=1)
    arguments = parser.parse_args()
    failed, ranks = [], None
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.programs):
            # the rank that waits for one that failed gives up before Ranks does
            ranks = ranks or Ranks(arguments.ranks, folder, timeout_s=15)
            outcomes = ranks.outcomes(run_seeds, [seed])
            if any(outcome.failed for outcome in outcomes):
                failed.append(seed)
                for rank, outcome in enumerate(outcomes):
                    print(f"rank {rank}: {outcome.trace or outcome.died}", flush=True)
                ranks.close()
                ranks = None
            if seed % 50 == 0:
                print(f"seeds {arguments.first_seed} to {seed}: failed {failed}", flush=True)
        if ranks is not None:
            ranks.close()
    print(f"{arguments.programs} programs, {len(failed)} failed: {failed[:50]}")


if __name__ == "__main__":
    main()
