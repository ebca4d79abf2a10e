"""Tests of the programs of tests/programs on two hosts: on tutti they must print what they print on gloo over the same
hosts.

Checkpoints that a separate process saves are tested in tests/python only, because that process does not depend on the
number of hosts. Every digit must be the same if each sum has two terms, because only one order of adding exists then:
with two ranks, and with four ranks that are two by two in a mesh, or in stages. Otherwise the last digits may differ.
"""
import contextlib
import io
import os
import re
import runpy
import sys

import pytest
import torch.distributed as dist
from across import BACKEND
from test_programs import LIMIT_S, PROGRAMS, ROOT, without_processes

ONE_EACH, TWO_EACH = (0, 1), (0, 0, 1, 1)
NUMBER = r"\d+\.\d+"


def printed(world, script, arguments, folder):
    """Runs the program as torchrun does. Returns the output of this rank."""
    os.chdir(folder)
    os.environ.update(MASTER_ADDR=world.store.host, MASTER_PORT=str(world.store.port), RANK=str(world.rank),
                      WORLD_SIZE=str(world.size), TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    # On gloo it may hang: leave_at_once of test_programs.py says why.
    if "gloo" in arguments:
        dist.destroy_process_group = lambda: None
    sys.argv = [script, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(script, run_name="__main__")
    return out.getvalue()


def run(fresh, placement, program, starts, backend, folder):
    """Runs the program with its first `starts` lists of arguments, or with all if None. Returns the output of all ranks
    for each."""
    folder.mkdir()
    script, texts = str(ROOT / "tests/programs" / program.script), []
    for arguments in without_processes(program)[:starts]:
        ranks = fresh(*placement, join=False)
        texts.append("".join(ranks.run(printed, script, ["--backend", backend, *arguments], str(folder),
                                       limit_s=LIMIT_S)))
        ranks.close()
    return texts


def on_both(fresh, placement, program, folder, starts=None):
    return [run(fresh, placement, program, starts, BACKEND, folder / "its"),
            run(fresh, placement, program, starts, "gloo", folder / "judge")]


@pytest.mark.parametrize("name, placement", [("ddp", ONE_EACH), ("fsdp", ONE_EACH), ("checkpoint", ONE_EACH),
                                             ("tensor parallel", TWO_EACH), ("pipelining", TWO_EACH)])
def test_prints_what_it_prints_on_gloo(fresh, name, placement, tmp_path):
    mine, judge = on_both(fresh, placement, PROGRAMS[name], tmp_path)
    assert re.search(PROGRAMS[name].shows, mine[-1]), mine
    assert mine == judge


@pytest.mark.parametrize("name, starts", [("ddp", 2), ("fsdp", 1), ("checkpoint", 2)])
def test_prints_almost_what_it_prints_on_gloo(fresh, name, starts, tmp_path):
    """Equal text, and numbers within a relative error of 1e-5. The starts that are left out would only take time; the
    second one of fsdp would also differ by more, because it uses mixed precision."""
    mine, judge = on_both(fresh, TWO_EACH, PROGRAMS[name], tmp_path, starts)
    for its, other in zip(mine, judge, strict=True):
        assert re.sub(NUMBER, "", its) == re.sub(NUMBER, "", other)
        figures, others = ([float(number) for number in re.findall(NUMBER, text)] for text in (its, other))
        assert figures == pytest.approx(others, rel=1e-5)
