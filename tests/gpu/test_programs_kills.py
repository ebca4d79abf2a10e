"""Tests of ranks that are killed at a random moment of random programs with CUDA tensors: each other rank gets an error
that names the dead process, its streams go on, and groups without the dead rank work, on the CPU and on streams.

One rank is killed for every 200 cases: `--cases 20000` kills 100, `--first-seed 7` others.
"""
import random
import threading
from datetime import timedelta

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install hypothesis")

import model
import operations
import random_programs
import stream_programs
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(),
                                reason="needs a GPU: torch.cuda.is_available() is False on this machine")
SIZE = 3
# The longest time from the start of the programs to the kill, and that of all programs and checks of a survivor.
# Operations have the timeout of device_checks.LIMIT_S, so a survivor that waits for one is too late.
LATEST_S, LIMIT_S = 2.5, 50


def make_groups(world, victim):
    operations.groups_here(world)
    world.kept["survivors"] = dist.new_group([rank for rank in range(world.size) if rank != victim])


def groups_with(world, rank):
    """Returns the groups of this rank that a dead rank breaks, and the other ones."""
    mine = [(ranks, group) for ranks, group in zip(model.groups_of(world.size), operations.groups_here(world))
            if world.rank in ranks]
    return [group for ranks, group in mine if rank in ranks], [group for ranks, group in mine if rank not in ranks]


def run_until_failure(world, programs):
    """Carries out the programs, again and again. Returns the error of the first operation that fails."""
    try:
        while True:
            for program in programs:
                operations.Run(world, program, stream_programs.place_of(world, program)).run()
    except dist.DistBackendError as error:
        return error
    except AssertionError as error:
        # A wrong call to a group that has failed.
        if not isinstance(error.__cause__, dist.DistBackendError):
            raise
        return error.__cause__


def check_kill(world, *arguments):
    try:
        check_survivor(world, *arguments)
    except BaseException:
        # The other survivor may wait for this one.
        world.kept["survivors"].abort()
        raise


def check_survivor(world, programs, victim, process):
    """Runs programs until the rank `victim`, which has this process id, is dead, and then checks the groups."""
    broken, others = groups_with(world, victim)
    error = run_until_failure(world, programs)
    for group in others:
        # Another survivor may wait for this one.
        group.abort()
    # A survivor that still runs its program would make other calls of the broken groups.
    world.store.set(f"kill/{world.rank}", "failed")
    world.store.wait([f"kill/{rank}" for rank in range(world.size) if rank != victim], timedelta(seconds=LIMIT_S))
    assert f"process {process} " in str(error) or "aborted" in str(error), error
    device = world.kept["device"]
    for group in broken:
        # An operation on a stream would not raise before the host knows of the death.
        for place in ("cpu", device):
            with pytest.raises(dist.DistBackendError, match=f"process {process} .*died"):
                dist.all_reduce(torch.ones(3, device=place), group=group)
    torch.cuda.synchronize()
    for place in ("cpu", device):
        x = torch.full((5000,), float(world.rank + 1), device=place)
        dist.all_reduce(x, group=world.kept["survivors"])
        assert x.tolist() == [world.size * (world.size + 1) / 2 - victim - 1] * 5000
    dist.destroy_process_group()


def kill_one(started, seed, slots):
    """Starts ranks with random programs, and kills one of them at a random moment."""
    programs, draw = [], random.Random(seed)
    random_programs.one_round(seed, random_programs.programs(times=3), programs.append, examples=5)
    victim, delay_s = draw.randrange(SIZE), draw.uniform(0, LATEST_S)
    # Streams that go on after a failure access memory without order, so the fake's checker is off.
    ranks = started(SIZE, FAKE_CUDA_ORDER="0", **slots)
    ranks.run(make_groups, victim)
    killer = threading.Timer(delay_s, ranks.processes[victim].kill)
    killer.start()
    outcomes = ranks.outcomes(check_kill, programs, victim, ranks.processes[victim].pid, limit_s=LIMIT_S)
    killer.join()
    wrong = [f"---- rank {rank} ----\n{outcome.trace or f'died with {outcome.died}'}"
             for rank, outcome in enumerate(outcomes) if outcome.failed and (rank, outcome.died) != (victim, -9)]
    assert not wrong and outcomes[victim].died, "\n".join(
        [f"seed {seed}, rank {victim} killed after {delay_s:.3f} s", *wrong])
    ranks.close()


@pytest.mark.parametrize("slots", [{}, {"TUTTI_CUDA_SLOT_BYTES": "65536"}], ids=["large slots", "small slots"])
def test_killed_rank_gives_errors_and_other_groups_go_on(started, slots, request):
    kills = max(1, (request.config.getoption("cases") or 0) // 400)
    for number in range(kills):
        kill_one(started, request.config.getoption("first_seed") + number, slots)
    print(f"{kills} ranks were killed")
