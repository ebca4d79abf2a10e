"""Finds the extension for the running torch and Python among those that lie beside this file, and explains what is
wrong with an installation. Without these checks the dynamic linker would name a mangled symbol, or the process would
crash.

torch's C++ interface changes with every minor version, so an extension is named after its torch: `_C_2_13` for torch
2.13.x. A wheel has one for each minor version of torch, and a build from source has the one of the installed torch.
"""
from __future__ import annotations

import re
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).parent
SUFFIX = EXTENSION_SUFFIXES[0]
_NAME = re.compile(r"_C_(\d+)_(\d+)(\..+)")
_BUILD = ("in a checkout of tutti run script/setup, or pip install --no-build-isolation --no-deps --force-reinstall . "
          "there")


def _extensions(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Returns {suffix of a Python: the minor versions of torch that have an extension for it, in order}."""
    versions_of: dict[str, list[tuple[int, int]]] = {}
    for path in folder.glob("_C_*.so"):
        if match := _NAME.fullmatch(path.name):
            versions_of.setdefault(match[3], []).append((int(match[1]), int(match[2])))
    return {suffix: sorted(versions) for suffix, versions in versions_of.items()}


def built_for(folder: Path = FOLDER, suffix: str = SUFFIX) -> list[str]:
    """Returns the minor versions of torch that have an extension for this Python, such as ["2.13", "2.14"]."""
    return [f"{major}.{minor}" for major, minor in _extensions(folder).get(suffix, [])]


def _python_of(suffix: str) -> str:
    """Returns the name of a Python, such as "Python 3.11 (x86_64-linux-gnu)" for the suffix
    ".cpython-311-x86_64-linux-gnu.so". Returns an unknown suffix as it is."""
    match = re.fullmatch(r"\.cpython-(\d)(\d+)(\w*)-(.+)\.so", suffix)
    return f"Python {match[1]}.{match[2]}{match[3]} ({match[4]})" if match else suffix


def extension_name(torch_version: str, folder: Path = FOLDER, suffix: str = SUFFIX) -> str:
    """Returns the name of the extension for this version of torch, such as "_C_2_13". Raises ImportError if the folder
    has none for this torch and the Python with this suffix."""
    versions_of = _extensions(folder)
    if not versions_of:
        raise ImportError("torch_tutti has not been built: run script/setup in the checkout, or "
                          "pip install --no-build-isolation -e .")
    if suffix not in versions_of:
        pythons = ", ".join(_python_of(other) for other in sorted(versions_of))
        raise ImportError(f"torch_tutti in {folder} was built for {pythons}, but this is {_python_of(suffix)}. Install "
                          f"it with this Python, from a wheel for it; or {_BUILD}")
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(match[1]), int(match[2])) if match else None
    if version not in versions_of[suffix]:
        versions = ", ".join(built_for(folder, suffix))
        raise ImportError(f"torch_tutti was built for torch {versions}, but torch {torch_version} is installed. "
                          f"Install another torch, or build tutti for this one: {_BUILD}")
    return "_C_{}_{}".format(*version)


def mapped_files(*libraries: str) -> list[list[str]]:
    """Returns, for each name, the sorted paths of the files of this name that the process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.endswith(".so\n")}
    return [sorted(path for path in paths if path.endswith(f"/{library}")) for library in libraries]


def check_one_torch() -> None:
    """Raises ImportError if the process has loaded libraries of two torches: the extension would call one with objects
    of the other."""
    for paths in mapped_files("libc10.so", "libtorch_cpu.so", "libtorch_python.so"):
        if len(paths) > 1:
            raise ImportError(f"this process has loaded two torches: {' and '.join(paths)}. Use one torch in a "
                              "process: look at sys.path, LD_PRELOAD and LD_LIBRARY_PATH, and at programs that embed "
                              "libtorch")


def check_library(extension_version: str, library_version: str) -> None:
    """Raises ImportError if the extension was built for another version of tutti than the libtutti.so that was loaded
    with it."""
    if extension_version != library_version:
        raise ImportError(f"the extension of torch_tutti is of version {extension_version}, but "
                          f"{_loaded_library()} is of version {library_version}. {_REPAIR}")


def explain_load_error(error: ImportError) -> ImportError:
    """Returns an ImportError that says what to do if the dynamic linker missed a part of libtutti, else the error
    itself."""
    if "libtutti" not in str(error) and "tutti_" not in str(error):
        return error
    return ImportError(f"the extension of torch_tutti does not fit {_loaded_library()}: {error}. {_REPAIR}")


_REPAIR = ("Two installations are mixed. Install torch_tutti again, into an empty place: pip uninstall torch-tutti, "
           f"then install the wheel; or {_BUILD}")


def _loaded_library() -> str:
    """Returns the path of the loaded libtutti.so, or of the one in this folder if none is loaded."""
    return " and ".join(mapped_files("libtutti.so")[0]) or str(FOLDER / "libtutti.so")
