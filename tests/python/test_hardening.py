"""Tests that both libraries are built so that a mistake in them is harder to exploit, by the marks that the linker and
the compiler leave in the files."""
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import torch_tutti
from torch_tutti._extension import load

X86 = platform.machine() in ("x86_64", "AMD64")
PAGE = 0x1000
FOLDER = Path(torch_tutti.__file__).parent
LIBRARIES = {"core": FOLDER / "libtutti.so", "extension": Path(load().__file__)}


def listed(tool, *arguments):
    if not shutil.which(tool):
        pytest.skip(f"{tool} is needed (apt-get install binutils)")
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=LIBRARIES, scope="module")
def library(request):
    return LIBRARIES[request.param]


@pytest.fixture(scope="module")
def code(library):
    return listed("objdump", "-d", "--no-show-raw-insn", library)


def imports(library):
    return set(re.findall(r"UND (\w+)", listed("readelf", "--dyn-syms", "-W", library)))


def test_stack_is_not_executable(library):
    flags = re.search(r"GNU_STACK(?:\s+0x\w+){5}\s+([RWE ]+?)\s+0x", listed("readelf", "-l", "-W", library))
    assert flags and flags[1].replace(" ", "") == "RW"


def test_relocated_data_is_read_only(library):
    """The table of functions is read-only, too, because all names are resolved when the library is loaded."""
    assert "GNU_RELRO" in listed("readelf", "-l", "-W", library)
    dynamic = listed("readelf", "-d", "-W", library)
    assert re.search(r"\(BIND_NOW\)|\(FLAGS_1\).*\bNOW\b|\(FLAGS\).*\bBIND_NOW\b", dynamic)


def test_stack_is_guarded(library):
    assert "__stack_chk_fail" in imports(library)


def test_copies_check_the_size_of_their_destination():
    """FORTIFY replaces functions by others that check the size of the destination. (The extension has no copy whose
    destination has a size that the compiler knows and whose length it does not know.)"""
    assert {"__memcpy_chk", "__snprintf_chk"} <= imports(LIBRARIES["core"])


@pytest.mark.skipif(not X86, reason="the pattern is that of x86 instructions")
def test_no_frame_steps_over_a_guard_page(code):
    """Large frames are grown by a page at a time, each of which is touched."""
    steps = [int(step, 16) for step in re.findall(r"sub\s+\$0x([0-9a-f]+),%rsp", code)]
    # The others are negative, and move the stack pointer up.
    down = [step for step in steps if step < 1 << 63]
    assert down and max(down) <= PAGE


def first_instructions(code):
    """Returns {function: its first instruction} of the exported functions."""
    return dict(re.findall(r"^[0-9a-f]+ <((?:tutti_|PyInit_)\w+)>:\n\s*[0-9a-f]+:\s+(\w+)", code, re.MULTILINE))


@pytest.mark.skipif(not X86, reason="-mbranch-protection leaves other marks")
def test_indirect_calls_end_at_functions(code):
    first = first_instructions(code)
    assert first and set(first.values()) == {"endbr64"}
