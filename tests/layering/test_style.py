"""Tests that all C and C++ files are formatted by script/format, and that `script/format --check` finds one that is
not."""
import subprocess
import sys
from pathlib import Path

FORMAT = Path(__file__).resolve().parents[2] / "script/format"


def check(*names):
    return subprocess.run([sys.executable, FORMAT, "--check", *names], capture_output=True, text=True)


def test_all_files_are_formatted():
    run = check()
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr


def test_unformatted_file_is_found(tmp_path):
    file = tmp_path / "odd.c"
    file.write_text("int one( void ){return 1 ;}\n")
    run = check(str(file))
    assert run.returncode == 1
    assert "error: 1 files are not as script/format leaves them" in run.stderr
    assert "+int one(void) { return 1; }" in run.stdout
