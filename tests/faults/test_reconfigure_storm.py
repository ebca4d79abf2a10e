"""A small storm of changes on every run of the tests, on one host and on two simulated ones."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_tutti")
STORM = Path(__file__).resolve().parent / "reconfigure_storm.py"
CHANGES = int(os.environ.get("STORM_CHANGES", "20"))


@pytest.mark.parametrize("hosts", [1, 2])
def test_storm(hosts):
    command = [sys.executable, str(STORM), "--changes", str(CHANGES), "--hosts", str(hosts)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150 + 10 * CHANGES)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{CHANGES} changes" in run.stdout and "0 problems" in run.stdout
