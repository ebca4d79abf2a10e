"""Test of jobs beside an attacker that sees all their traffic (stranger_storm.py)."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from across import BACKEND

STORM = Path(__file__).resolve().parents[1] / "faults/stranger_storm.py"
SECONDS = os.environ.get("STORM_SECONDS", "8")


@pytest.mark.skipif(BACKEND != "tutti", reason="only tutti promises this")
def test_jobs_compute_while_an_attacker_learns_nothing(namespaces_work):
    pytest.importorskip("torch_tutti", reason="torch_tutti is not installed")
    command = [sys.executable, str(STORM), "--seconds", SECONDS, "--job-seconds", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300 + float(SECONDS))
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
