"""Tests that the UCX library of a wheel is found without importing the wheel, and that TUTTI_UCX overrides it. The
wheel is a fake."""
import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
{load}
assert "libucx" not in sys.modules
print(os.environ.get("TUTTI_UCX"))
"""
WAYS = {"info": "import torch_tutti; torch_tutti.info()",
        "extension": "from torch_tutti._extension import load; load()"}


def setting(folder, way, **environment):
    found = {name: value for name, value in os.environ.items() if name != "TUTTI_UCX"}
    found["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run([sys.executable, "-c", PROGRAM.format(load=WAYS[way])], capture_output=True, text=True,
                         timeout=120, env={**found, **environment})
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.fixture
def wheel(tmp_path):
    library = tmp_path / "libucx/lib/libucp.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "libucx/__init__.py").write_text("raise RuntimeError('the package must not import this')")
    return library


@pytest.mark.parametrize("way", WAYS)
def test_library_of_a_wheel_comes_after_that_of_the_system(wheel, tmp_path, way):
    assert setting(tmp_path, way) == f"libucp.so.0:{wheel}"


def test_setting_of_the_user_stays(wheel, tmp_path):
    assert setting(tmp_path, "info", TUTTI_UCX="libother.so") == "libother.so"
    assert setting(tmp_path, "info", TUTTI_UCX="") == ""


def test_wheel_without_the_library_is_ignored(wheel, tmp_path):
    wheel.unlink()
    assert setting(tmp_path, "info") == "None"
