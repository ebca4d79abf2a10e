"""Tests that each fuzz target has a row in tests/fuzz/README.md and a small corpus, and that script/fuzz refuses wrong
arguments."""
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/fuzz"
TARGETS = sorted(path.stem for path in FOLDER.glob("*.c"))
MOST_FILES, MOST_BYTES = 64, 4096


def test_readme_has_a_row_for_each_target():
    rows = re.findall(r"^\| `(\w+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rows == TARGETS


def test_each_target_has_a_small_corpus():
    assert sorted(folder.name for folder in (FOLDER / "corpus").iterdir()) == TARGETS
    for name in TARGETS:
        files = list((FOLDER / "corpus" / name).iterdir())
        assert 1 <= len(files) <= MOST_FILES, name
        assert all(file.stat().st_size <= MOST_BYTES for file in files), name


def test_unknown_target_is_refused():
    run = subprocess.run([ROOT / "script/fuzz", "nothing"], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"no target is called nothing; there are {' '.join(TARGETS)}" in run.stderr


def test_seconds_that_are_no_number_are_refused():
    run = subprocess.run([ROOT / "script/fuzz", TARGETS[0], "soon"], capture_output=True, text=True)
    assert run.returncode == 1 and "the number of seconds is 'soon'; it must be 1 or more" in run.stderr
