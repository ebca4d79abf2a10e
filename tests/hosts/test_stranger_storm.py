"""A short attack by a stranger that sees all traffic of a job, on every run of the tests."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from across import BACKEND

STORM = Path(__file__).resolve().parents[1] / "faults/stranger_storm.py"
SECONDS = os.environ.get("STORM_SECONDS", "8")


@pytest.mark.skipif(BACKEND != "tutti", reason="these are promises of tutti")
def test_a_stranger_learns_nothing_and_stops_nobody(namespaces_work):
    pytest.importorskip("torch_tutti", reason="torch_tutti is not installed")
    command = [sys.executable, str(STORM), "--seconds", SECONDS, "--job-seconds", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300 + float(SECONDS))
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
