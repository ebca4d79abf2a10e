"""Tests of random programs of collectives and messages, on groups that overlap, waited for in any order or not at all:
the results are, to the last bit, those that one process computes from the same inputs (model.py). Wrong calls are
refused and harm nothing.

A case is one operation, checked on all ranks of its group. `--cases 100000` runs more of them than continuous
integration does, `--first-seed 7` others. A failing program is shrunk and printed with a line that runs it again.
"""
import math

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install hypothesis")

import model
import random_programs
from arithmetic import hosts_of, raw, reduced
from model import Step
from ranks import hosts_of_job

SIZES = [2, 3, 4]


@pytest.mark.parametrize("size", SIZES)
def test_random_programs_give_the_results_of_the_model(shared, size, request):
    ordered, hung = len(set(hosts_of_job(size))) < 3, {}
    cases = math.ceil((request.config.getoption("cases") or 10_000) / len(SIZES))

    def check(program):
        random_programs.check(lambda: shared(size), f"python tests/python/operations.py {size}", hung, program)

    # Chance may draw some mistakes or types never, so they come first.
    for program in random_programs.complete_programs(ordered):
        check(program)
    done = random_programs.rounds(request.config.getoption("first_seed"), cases, check, ordered)
    print(f"{len(done)} cases on {size} ranks")


# ---- the model itself ----
KINDS = [*model.REDUCING, *model.MOVING]


def spoiled(outcomes, size, program):
    """Yields copies of the reports of the ranks, each with one bit of one result flipped."""
    for rank in range(size):
        for number in range(len(program)):
            for place, (name, data) in enumerate(outcomes[rank][number] or []):
                if data:
                    wrong = [[list(got) if got else got for got in of_rank] for of_rank in outcomes]
                    wrong[rank][number][place] = (name, bytes([data[0] ^ 1]) + data[1:])
                    yield wrong


def reported(program, size):
    """Returns the reports that ranks without a fault would give."""
    outcomes = [[None] * len(program) for _ in range(size)]
    for number, step in enumerate(program):
        members = model.groups_of(size)[step.group]
        hosts = hosts_of(members, size)
        for position, rank in enumerate(members):
            if step.kind == "messages":
                outcomes[rank][number] = perfect_messages(step, len(members), position)
            else:
                outcomes[rank][number] = [("", part.tobytes())
                                          for part in model.results(step, len(members), hosts)[position]]
    return outcomes


def perfect_messages(step, size, rank):
    messages, sent = model.messages_of(step, size), {}
    for source in range(size):
        for is_send, index in model.postings(step, size, source):
            if is_send:
                sent.setdefault((source, *messages[index][1:]), []).append(index)
    wanted = [messages[index] for is_send, index in model.postings(step, size, rank) if not is_send]
    return [(message[0], model.message_bytes(step, size, sent[message].pop(0)).tobytes()) for message in wanted]


@pytest.mark.parametrize("kind", [*KINDS, "messages"])
def test_one_wrong_bit_is_seen(kind):
    program = [Step(kind, shape=(2, 3), seed=seed, messages=((0, 1, 0), (1, 0, 4), (2, 0, 4), (0, 1, 0)))
               for seed in (0, 1, 16, 17)]
    outcomes = reported(program, 3)
    assert not model.complaints(program, 3, outcomes)
    seen = [model.complaints(program, 3, wrong) for wrong in spoiled(outcomes, 3, program)]
    assert seen and all(seen)


def test_messages_out_of_order_are_seen():
    step = Step("messages", how="wait", messages=((0, 1, 2),) * 3)
    got = perfect_messages(step, 2, 1)
    assert not model.complaints_about_messages(step, 2, 1, got)
    assert model.complaints_about_messages(step, 2, 1, [got[1], got[0], got[2]])
    assert model.complaints_about_messages(step, 2, 1, got[:2])
    assert model.complaints_about_messages(step, 2, 1, [(5, data) for _, data in got])


def test_model_rounds_once_and_from_left_to_right():
    """Checks the model's arithmetic by sums whose result would differ if each addition were rounded to the type."""
    import torch

    def total(op, dtype, *numbers, hosts=None):
        parts = [raw(torch.tensor([x], dtype=dtype)) for x in numbers]
        together = reduced(parts, str(dtype)[6:], op, hosts or [0] * len(parts))
        return torch.from_numpy(together.copy()).view(dtype).item()

    # 2048 + 1 is 2048 in float16.
    assert total("SUM", torch.float16, 2048, 1, 1) == 2050
    # The sum is 259, and is rounded once.
    assert total("SUM", torch.bfloat16, 256, 1, 1, 1) == 260
    # Additions go from left to right.
    assert total("SUM", torch.float32, 1e8, 1, -1e8) == 0
    # Integer averages are rounded towards zero.
    assert total("AVG", torch.int8, -3, -4) == -3
    # The sum wraps before the division.
    assert total("AVG", torch.int8, 127, 1) == -64
    # This type has no infinity.
    assert total("SUM", torch.float8_e4m3fn, 448, 448) == 448
    assert math.copysign(1, total("MIN", torch.float32, 0.0, -0.0)) == -1
    assert math.copysign(1, total("MAX", torch.float32, -0.0, 0.0)) == 1
    assert math.isnan(total("MAX", torch.float64, 1, math.nan, 2))
    assert total("BXOR", torch.bool, True, True, True) is True
    # 256 + 1 is 256 in bfloat16, which is the result of the first of two hosts.
    assert total("SUM", torch.bfloat16, 256, 1, 1, 1, hosts=[0, 0, 1, 1]) == 258
    assert total("SUM", torch.bfloat16, 256, 1, 1, 1, hosts=[0, 1, 0, 1]) == 258
    assert total("SUM", torch.bfloat16, 256, 1, 1, 1, hosts=[0, 1, 1, 1]) == 260
    assert total("AVG", torch.bfloat16, 256, 1, 1, 1, hosts=[0, 0, 1, 1]) == 64.5
