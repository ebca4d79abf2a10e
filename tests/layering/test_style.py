"""All C and C++ files are as script/format leaves them, and it notices one that is not."""
import subprocess
import sys
from pathlib import Path

FORMAT = Path(__file__).resolve().parents[2] / "script/format"


def check(*names):
    return subprocess.run([sys.executable, FORMAT, "--check", *names], capture_output=True, text=True)


def test_files_have_one_style():
    said = check()
    assert said.returncode == 0, said.stdout[-4000:] + said.stderr


def test_other_style_is_found(tmp_path):
    file = tmp_path / "odd.c"
    file.write_text("int one( void ){return 1 ;}\n")
    said = check(str(file))
    assert said.returncode == 1
    assert "error: 1 files are not as script/format leaves them" in said.stderr
    assert "+int one(void) { return 1; }" in said.stdout
