"""An installation that does not fit the running torch, the running Python or its own library raises an error that says
what to do; and of several extensions the one for the running torch is chosen."""
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import setuptools
from program_start import run_interpreter, run_python, succeeded

import torch_tutti
from torch_tutti import _installation, _library

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(torch_tutti.__file__).parent
PYTHON_310 = ".cpython-310-x86_64-linux-gnu.so"
PYTHON_311 = ".cpython-311-x86_64-linux-gnu.so"

LOAD = """
import torch, torch_tutti
try:
    torch_tutti.Options
except ImportError as error:
    print(error)
"""


@pytest.fixture
def setup_script(monkeypatch):
    """Returns the functions of setup.py."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    return SimpleNamespace(**runpy.run_path(str(ROOT / "setup.py")))


@pytest.fixture
def folder(tmp_path):
    """An installation with extensions for three torches and one Python."""
    for torch in ("2_9", "2_13", "2_14"):
        (tmp_path / f"_C_{torch}{PYTHON_311}").touch()
    return tmp_path


def refusal(call, *arguments):
    with pytest.raises(ImportError) as caught:
        call(*arguments)
    return str(caught.value)


# ---- building ----
def test_build_keeps_its_own_extension(setup_script, folder, monkeypatch):
    """A build that is not in place passes a relative folder."""
    monkeypatch.chdir(folder.parent)
    setup_script.remove_other_extensions(Path(folder.name), {f"_C_2_13{PYTHON_311}"})
    assert [path.name for path in folder.glob("_C*")] == [f"_C_2_13{PYTHON_311}"]


# ---- which extension ----
@pytest.mark.parametrize("version, name", [
    ("2.13.0", "_C_2_13"), ("2.13.7+cu130", "_C_2_13"), ("2.14.0a0+git12ab", "_C_2_14"), ("2.9.1", "_C_2_9")])
def test_minor_version_of_torch_chooses(folder, version, name):
    assert _installation.extension_name(version, folder, PYTHON_311) == name


def test_versions_are_in_numerical_order(folder):
    assert _installation.built_for(folder, PYTHON_311) == ["2.9", "2.13", "2.14"]
    assert _installation.built_for(folder, PYTHON_310) == []


def test_running_torch_has_its_extension():
    import torch
    from torch_tutti import _C, _extension
    minor = torch.__version__.split(".")[1]
    assert minor in {version.split(".")[1] for version in _installation.built_for()}
    assert _C is _extension.load() is sys.modules["torch_tutti._C"] and _C.Options is torch_tutti.Options
    assert Path(_C.__file__).name == f"_C_2_{minor}{_installation.SUFFIX}"


def test_stable_name_loads_the_extension_by_itself():
    assert succeeded(run_interpreter("-c", "import torch_tutti._C as c; print(c.Options('broadcast=chain').algorithm)")
                     ) == "broadcast=chain\n"


# ---- installations that do not fit ----
@pytest.mark.parametrize("version", ["2.16.0+cpu", "2.1.0", "3.13.0", "unknown"])
def test_error_of_another_torch_names_the_built_ones(folder, version):
    text = refusal(_installation.extension_name, version, folder, PYTHON_311)
    assert f"was built for torch 2.9, 2.13, 2.14, but torch {version} is installed" in text
    assert all(way in text for way in ("Install another torch", "script/setup", "pip install"))


def test_other_torch_is_refused_when_the_package_is_used():
    text = succeeded(run_python("-c", "import torch; torch.__version__ = '2.99.0'" + LOAD))
    assert "was built for torch" in text and "but torch 2.99.0 is installed" in text


@pytest.mark.parametrize("suffix, name", [
    (PYTHON_310, "Python 3.10 (x86_64-linux-gnu)"), (".cpython-313t-x86_64-linux-gnu.so", "Python 3.13t"),
    (".cpython-311-aarch64-linux-gnu.so", "Python 3.11 (aarch64-linux-gnu)"), (".pypy311-pp73.so", ".pypy311-pp73.so")])
def test_error_of_another_python_names_the_built_one(folder, suffix, name):
    text = refusal(_installation.extension_name, "2.13.0", folder, suffix)
    assert "was built for Python 3.11 (x86_64-linux-gnu), but this is " + name in text
    assert str(folder) in text and "Install it with this Python" in text


def test_error_of_an_unbuilt_checkout_names_the_script(tmp_path):
    # An earlier version built an extension of this name.
    (tmp_path / f"_C{PYTHON_311}").touch()
    text = refusal(_installation.extension_name, "2.13.0", tmp_path, PYTHON_311)
    assert "has not been built" in text and "script/setup" in text


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_two_torches_in_one_process_are_refused(tmp_path):
    other = tmp_path / "libtorch_cpu.so"
    subprocess.run(["cc", "-shared", "-o", other, "-x", "c", "/dev/null"], check=True, timeout=60)
    text = succeeded(run_python("-c", f"import ctypes; ctypes.CDLL({str(other)!r})" + LOAD))
    assert "has loaded two torches" in text and f"{other}" in text and "LD_PRELOAD" in text
    assert text.count("libtorch_cpu.so") == 2


def copy_package(folder, edit_library):
    """Copies the package and changes its libtutti.so by edit_library(path). Returns the output of a new interpreter
    that loads the copy."""
    shutil.copytree(PACKAGE, folder / "torch_tutti", ignore=shutil.ignore_patterns("__pycache__", "include"))
    edit_library(folder / "torch_tutti" / "libtutti.so")
    return succeeded(run_interpreter("-c", LOAD, PYTHONPATH=str(folder), TORCH_DEVICE_BACKEND_AUTOLOAD="0"))


def test_library_of_another_version_is_refused(tmp_path):
    def edit_library(path):
        content, version = path.read_bytes(), _library._library().tutti_get_version()
        assert content.count(b"\0" + version + b"\0") == 1
        path.write_bytes(content.replace(b"\0" + version + b"\0", b"\0" + b"9" + version[1:] + b"\0"))

    text = copy_package(tmp_path, edit_library)
    library = tmp_path / "torch_tutti" / "libtutti.so"
    assert f"{library} is of version 9." in text and "the extension of torch_tutti is of version 0." in text
    assert "pip uninstall torch-tutti" in text


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_library_without_a_function_is_refused(tmp_path):
    def edit_library(path):
        path.unlink()
        source = 'const char *tutti_get_version(void) { return "0.0.1"; }'
        subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-"], input=source, text=True, check=True,
                       timeout=60)

    text = copy_package(tmp_path, edit_library)
    assert "does not fit" in text and "undefined symbol: tutti_" in text and "pip uninstall torch-tutti" in text


def test_library_that_is_missing_is_named(tmp_path):
    text = copy_package(tmp_path, Path.unlink)
    assert "libtutti.so" in text and "pip uninstall torch-tutti" in text


def test_unknown_option_is_refused():
    with pytest.raises(TypeError, match='no option "algorithms"; the options are algorithm, timeout, '
                                        'blocking_futures and enable_reconfigure$'):
        torch_tutti.Options(algorithms="allreduce=ring")
    with pytest.raises(AttributeError, match="algorithms"):
        torch_tutti.Options().algorithms = "allreduce=ring"


# ---- programs in C ----
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("pkg-config") is None, reason="needs cc and pkg-config")
def test_c_program_is_built_with_pkg_config(tmp_path):
    (tmp_path / "program.c").write_text("#include <stdio.h>\n#include <tutti.h>\n"
                                        "int main(void) { return puts(tutti_get_version()) < 0; }\n")
    place = succeeded(run_python("-m", "torch_tutti", "config", "--pkgconfig")).strip()
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "tutti"], capture_output=True, text=True, check=True,
                           timeout=60, env={"PKG_CONFIG_PATH": place, "PATH": "/usr/local/bin:/usr/bin:/bin"}).stdout
    subprocess.run(["cc", "program.c", *flags.split(), "-o", "program"], cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == torch_tutti.__version__, done.stderr
