"""Tests of examples/parameter_server.py: it starts its ranks, runs in each mode, and draws its pictures."""
import sys
from pathlib import Path

import pytest
from program_start import run_python, run_ranks, succeeded
from test_example import installed
from zero_training import refused

from torch_tutti.ps import picture

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/parameter_server.py"


@pytest.mark.skipif(not installed(), reason="torch-tutti is not installed")
def test_example_runs_each_mode_and_draws(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    options = "--servers 2 --steps 6 --seconds 60 --straggler 0.02 --compute 0 --staleness 1 --plot".split()
    lines = succeeded(run_ranks(4, EXAMPLE, *options, tmp_path / "out.png")).splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == ["sync", "bounded", "async"] * 2
    assert all("pushes [6, 6]" in line for line in lines) and "one worker sleeps in every step" in lines[0]
    assert "at most 0 ahead" in lines[0] and ("at most 1 ahead" in lines[1] or "at most 0 ahead" in lines[1])
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.skipif(not installed(), reason="torch-tutti is not installed")
def test_example_starts_its_own_ranks():
    options = "--ranks 2 --modes async --who any --steps 2 --straggler 0 --compute 0".split()
    assert "pushes [2], at most" in succeeded(run_python(EXAMPLE, *options))


def test_losses_are_smoothed():
    times, means = picture.smooth([(2.0, 5.0), (1.0, 3.0), *[(float(at), 1.0) for at in range(3, 40)]])
    assert times == sorted(times) and means[:3] == [3.0, 4.0, 3.0] and means[-1] == 1.0


def test_impossible_pictures_are_refused(monkeypatch):
    refused(ValueError, "there is nothing to plot: no mode has run", lambda: picture.draw([], "out.png"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(ImportError, "a picture needs matplotlib: pip install matplotlib", lambda: picture.draw([], "out.png"))
