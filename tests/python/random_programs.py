"""Draws random programs (see model.py), and runs rounds of them. hypothesis shrinks a failing program and prints
it with a line that runs it again."""
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as draw

import model
from arithmetic import COMPLEX, DTYPES, FLOATS, OPS, undefined
from mistakes import MISTAKES
from model import Step
from operations import carry_out, verdict

LONGEST = 24
WAYS = ["sync", "wait", "future", "drop"]
CONTIGUOUS = [*["plain"] * 5, *["slice"] * 4]
NOT_EXPANDED = [*CONTIGUOUS, "transposed", "every_second"]
LAYOUTS = [*NOT_EXPANDED, "expanded"]

PAIRS = [(dtype, op) for dtype in DTYPES for op in OPS]
DEFINED = [pair for pair in PAIRS if not undefined(*pair)]
UNDEFINED = [pair for pair in PAIRS if undefined(*pair)]

SMALL = draw.lists(draw.integers(0, 4), max_size=5).map(tuple)
# Larger than a tile, and larger than all slots together.
LARGE = draw.sampled_from([(1027,), (4099, 3), (65539,)])
SHAPES = draw.one_of(*[SMALL] * 7, LARGE)
SEEDS = draw.integers(0, 2 ** 20)
GROUPS = draw.integers(0, len(model.groups_of(2)) - 1)
# Ranks and roots of steps, which are taken modulo the size of the group.
RANKS = draw.integers(0, 11)


# ---- the order of sums ----
def settled(dtype, op):
    """Returns whether the result is the same in every order of the ranks: integers wrap, and MIN and MAX select."""
    return (dtype not in FLOATS and dtype not in COMPLEX) or op in ("MIN", "MAX")


def settled_if_small(dtype, op):
    """Returns whether the result is so for the numbers 1 to 3 of a dozen ranks, because no partial sum is rounded."""
    return op in ("SUM", "AVG") and (dtype in COMPLEX or (dtype in FLOATS and not dtype.startswith("float8")))


SETTLED = [pair for pair in DEFINED if settled(*pair)]
SMALL_SETTLED = [pair for pair in DEFINED if settled_if_small(*pair)]


# ---- programs ----
@draw.composite
def collectives(choose, kinds, pairs, seeds=SEEDS, times=1):
    dtype, op = choose(draw.sampled_from(pairs))
    kind = choose(draw.sampled_from(kinds))
    layouts = draw.sampled_from(CONTIGUOUS if kind in model.ALWAYS_CONTIGUOUS else
                                NOT_EXPANDED if kind in model.NEVER_EXPANDED else LAYOUTS)
    repeated = choose(draw.integers(1, times)) if kind in model.IN_PLACE else 1
    return Step(kind, choose(GROUPS), dtype, choose(SHAPES), op, choose(RANKS), choose(layouts), choose(layouts),
                choose(draw.sampled_from(WAYS)), choose(seeds), times=repeated)


@draw.composite
def messages(choose):
    message = draw.tuples(RANKS, RANKS, draw.integers(0, 7))
    return Step("messages", choose(GROUPS), choose(draw.sampled_from(DTYPES)),
                layout=choose(draw.sampled_from(NOT_EXPANDED)), landing=choose(draw.sampled_from(NOT_EXPANDED)),
                how=choose(draw.sampled_from(["sync", "batch", "wait", "drop"])), seed=choose(SEEDS),
                messages=tuple(choose(draw.lists(message, min_size=1, max_size=8))))


def reductions_of(times):
    return collectives(model.REDUCING, DEFINED * 4 + UNDEFINED, times=times)


IN_ANY_ORDER = collectives(model.REDUCING, SETTLED * 4 + UNDEFINED)
SMALL_IN_ANY_ORDER = collectives(model.REDUCING, SMALL_SETTLED, SEEDS.map(lambda number: 3 * number))
BARRIERS = draw.builds(Step, draw.just("barrier"), GROUPS, how=draw.sampled_from(WAYS))
WRONG = draw.builds(Step, draw.just("wrong"), GROUPS, seed=SEEDS, what=draw.sampled_from(sorted(MISTAKES)))


@draw.composite
def programs(choose, ordered=True, times=1):
    """Draws a program. ordered=False: only with reductions whose result is the same in every order of the ranks.
    Between more than two hosts, this order depends on the algorithm. times: the most calls of a step on the same
    tensors."""
    reductions = [reductions_of(times)] * 4 if ordered else [IN_ANY_ORDER, SMALL_IN_ANY_ORDER] * 2
    moves = collectives(model.MOVING, [(dtype, "SUM") for dtype in DTYPES], times=times)
    steps = draw.sampled_from(reductions + [moves] * 4 + [messages()] * 2 + [WRONG, BARRIERS])
    return [choose(choose(steps)) for _ in range(choose(draw.integers(1, LONGEST)))]


def complete_programs(ordered=True):
    """Returns programs that together contain each kind of step, each mistake, and each reduction of each type."""
    steps = [Step("all_reduce", dtype=dtype, op=op) for dtype, op in (DEFINED if ordered else SETTLED)]
    steps += [Step(kind, dtype="int32") for kind in [*model.REDUCING, *model.MOVING, "barrier"]]
    steps += [Step("messages", messages=((0, 1, 0), (1, 0, 4)))] + [Step("wrong", what=name) for name in MISTAKES]
    return [steps[start:start + LONGEST] for start in range(0, len(steps), LONGEST)]


# ---- rounds of programs ----
def check(ranks_of_now, again, hung, program, carry_out=carry_out):
    """Asserts that a program gives the results of the model. again: the beginning of a line that runs it again. hung:
    {program: text} of programs that did not end. These are not shrunk, because each try would take minutes."""
    wrong = hung.get(repr(program))
    if hung and not wrong:
        return
    if not hung:
        try:
            wrong = "\n".join(verdict(ranks_of_now(), program, carry_out))
        except AssertionError as error:
            wrong = hung[repr(program)] = str(error)
    assert not wrong, f'{wrong}\nto run it again: {again} "{program}"'


def one_round(first_seed, some_programs, check_one, examples=100):
    """Runs `examples` random programs, or all different ones if there are fewer. Returns them."""
    done = []
    @seed(first_seed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate, Phase.shrink], print_blob=False, report_multiple_bugs=False)
    @given(some_programs)
    def each(program):
        note(f"seed {first_seed}")
        check_one(program)
        done.append(program)
    each()
    return done


def rounds(first_seed, cases, check_one, ordered=True, times=1, examples=100):
    """Runs rounds of programs, each with the next seed, until enough steps are checked. Returns these steps."""
    done = []
    while len(done) < cases:
        drawn = one_round(first_seed, programs(ordered, times), check_one, examples)
        done += [step for program in drawn for step in program]
        first_seed += 1
    return done
