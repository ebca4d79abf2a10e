"""Tests of groups whose members change at random (reconfigure_storm.py), on one host and on two simulated hosts."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_tutti")
STORM = Path(__file__).resolve().parent / "reconfigure_storm.py"
CHANGES = int(os.environ.get("STORM_CHANGES", "20"))


@pytest.mark.parametrize("hosts", [1, 2])
def test_members_join_and_answer_in_random_changes(hosts):
    command = [sys.executable, str(STORM), "--changes", str(CHANGES), "--hosts", str(hosts)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150 + 10 * CHANGES)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{CHANGES} changes" in run.stdout and "0 problems" in run.stdout
