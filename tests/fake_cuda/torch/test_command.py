"""Tests what script/test-cuda says without an environment to run in."""
import os
import subprocess
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[3] / "script/test-cuda"


@pytest.mark.parametrize("words, text", [
    ([], "script/test-cuda --setup makes it"),
    (["--", "true"], "script/test-cuda --setup makes it"),
    (["--"], "no command after --"),
    (["--fast"], "--fast is no option; there are --setup and --"),
])
def test_command_says_what_is_missing(words, text, tmp_path):
    run = subprocess.run([COMMAND, *words], env={**os.environ, "CUDA_VENV": str(tmp_path)}, capture_output=True,
                         text=True, timeout=100)
    assert run.returncode == 1 and text in run.stderr, run.stdout + run.stderr
    assert not any(tmp_path.iterdir())
