"""Tests that tutti and its tests can be built without the headers of libibverbs and UCX."""
import json
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADERS = ("infiniband/verbs.h", "ucp/api/ucp.h")
NEAR_THEM = re.compile(r"verbs|ucx|fabric|transports/", re.IGNORECASE)


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Returns {path: compile command} of the files whose text mentions verbs, UCX or fabrics. In place of the headers
    of libibverbs and UCX, the build finds headers that only contain `#error`."""
    if not shutil.which("cmake") or not shutil.which("ninja"):
        pytest.skip("cmake and ninja are needed")
    folder = tmp_path_factory.mktemp("absent")
    for header in HEADERS:
        (folder / header).parent.mkdir(parents=True)
        (folder / header).write_text("#error absent\n")
    subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder / "build", "-DTUTTI_TESTS=ON", "-DTUTTI_WERROR=ON",
                    "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_C_FLAGS=-I{folder}"],
                   check=True, capture_output=True)
    listed = json.loads((folder / "build/compile_commands.json").read_text())
    return {entry["file"]: entry for entry in listed
            if Path(entry["file"]).is_relative_to(ROOT) and NEAR_THEM.search(Path(entry["file"]).read_text())}


def compiler_errors(entry):
    words = [word for word in shlex.split(entry["command"]) if word != "ccache"]
    done = subprocess.run([*words, "-fsyntax-only"], cwd=entry["directory"], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_build_without_headers_compiles_absent_c_instead(commands):
    folders = {str(Path(name).parent.relative_to(ROOT)) for name in commands}
    names = {str(Path(name).relative_to(ROOT)) for name in commands}
    assert {"backend/transports/fabric", "tests/unit/transports", "backend/engine"} <= folders and len(names) > 40
    assert {f"backend/transports/{folder}/absent.c" for folder in ("ucx", "verbs")} <= names
    assert not [name for name in names if re.match(r"backend/transports/(ucx|verbs)/.*(?<!/absent)\.c$", name)]


def test_files_compile_without_headers(commands):
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        errors = [text for text in threads.map(compiler_errors, commands.values()) if text]
    assert not errors, "\n".join(errors)[:4000]
