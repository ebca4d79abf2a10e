"""Calls of the C library that need no group, by ctypes. They need no extension, and torch only to raise an error."""
from __future__ import annotations

import ctypes
import functools
import json
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Callable

from torch_tutti import _ucx

_PATH = Path(__file__).with_name("libtutti.so")


@functools.cache
def _library() -> ctypes.CDLL:
    """Returns libtutti.so, loaded once, with the result types of its functions. Raises ImportError if it has not been
    built."""
    if not _PATH.exists():
        raise ImportError("torch_tutti has not been built: run script/setup in the checkout, or "
                          "pip install --no-build-isolation -e .")
    _ucx.look_for_wheel()
    library = ctypes.CDLL(str(_PATH))
    for name in ("version", "error_string", "last_error"):
        getattr(library, f"tutti_get_{name}").restype = ctypes.c_char_p
    library.tutti_collective_name.restype = ctypes.c_char_p
    library.tutti_algorithm_name.restype = ctypes.c_char_p
    library.tutti_waiting_name.restype = ctypes.c_char_p
    library.tutti_waiting_count.restype = ctypes.c_uint64
    return library


def await_status_caller(connection: ctypes.c_int) -> bool:
    """Waits for a caller that asks where this process is, and sets `connection` to its socket. Returns True."""
    return _library().tutti_await_status_caller(ctypes.byref(connection)) == 0


def _check(status: int) -> None:
    """Raises the exception of a failed call, with the library's text. status: the tutti_status of the call; returns for
    0."""
    if status == 0:
        return
    library = _library()
    text = library.tutti_get_last_error().decode(errors="replace")
    from torch_tutti import _extension, exceptions
    if _extension._loaded is not None:
        _extension._loaded._raise_interrupt()
    raise exceptions._BY_STATUS.get(status, exceptions.InternalError)(text)


def check_int32(what: str, *numbers: int) -> None:
    """Raises ValueError unless all numbers fit into an int of C; ctypes would cut them off. what: the beginning of the
    error text."""
    for number in numbers:
        if not isinstance(number, int) or not -(1 << 31) <= number < 1 << 31:
            raise ValueError(f"{what}: {number} is not a 32-bit integer")


@functools.cache
def dtype_numbers() -> dict[bytes, int]:
    """Returns the number (tutti_dtype) of each element type, by its name."""
    library = _library()
    library.tutti_dtype_name.restype = ctypes.c_char_p
    numbers: dict[bytes, int] = {}
    while (name := library.tutti_dtype_name(len(numbers))) is not None and library.tutti_dtype_bytes(len(numbers)):
        numbers[name] = len(numbers)
    return numbers


def _text(function: Callable[..., int], *arguments: Any) -> str:
    """Returns the text that a C function writes whose last parameters are (buffer, capacity, &bytes). arguments: the
    parameters before these. Calls the function until the buffer is large enough; the text may grow meanwhile."""
    length = ctypes.c_size_t(0)
    while True:
        buffer = ctypes.create_string_buffer(length.value + 1)
        _check(function(*arguments, buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(length)))
        if length.value < len(buffer):
            return buffer.value.decode()


def get_include() -> str:
    """Returns the folder of tutti.h, for a C compiler's -I. The command `tutti config` prints all flags."""
    return str(_PATH.parent / "include")


def pkgconfig_folder() -> str:
    """Returns the folder of tutti.pc, for PKG_CONFIG_PATH."""
    return str(_PATH.parent / "pkgconfig")


def flags(compiling: bool, linking: bool) -> str:
    """Returns the flags of a C compiler for programs that use tutti: compiling: for tutti.h; linking: for the library,
    which programs then find where it lies now."""
    folder = str(_PATH.parent)
    options = [f"-I{get_include()}"] if compiling else []
    options += [f"-L{folder}", "-ltutti", f"-Wl,-rpath,{folder}"] if linking else []
    return shlex.join(options)


def version_of(distribution: str) -> str | None:
    """Returns the installed version of a Python distribution, or None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def info() -> dict[str, Any]:
    """Returns versions, instruction set, transports (or why one is missing), limits and settings of this process, for
    bug reports."""
    from torch_tutti import _autoload, _installation
    packages = {"torch-tutti": version_of("torch-tutti"), "torch": version_of("torch"),
                "built for torch": _installation.built_for()}
    return {"packages": packages, "registration problem": _autoload.problem, **json.loads(_text(_library().tutti_info))}


def waiting() -> dict[str, int]:
    """Returns how this process has waited for others since it began, over all its threads and groups, by the name of
    the count. For a part of the program, take the difference of two calls.

    yields: how often a thread gave its core away. sleeps, asleep_ns: how often and how long threads slept. timed_out:
    sleeps that ended without a wake-up. late: sleeps, idle ones included, that missed a wake-up that was due (more than
    a few are an error of tutti). naps: sleeps that no other thread would end. wakes: system calls that end sleeps of
    others. Waits that end within some microseconds are in none of these.
    """
    library, counts = _library(), {}
    while (name := library.tutti_waiting_name(len(counts))) is not None:
        counts[name.decode()] = library.tutti_waiting_count(len(counts))
    return counts


def algorithms() -> dict[str, list[str]]:
    """Returns the names of the algorithms of every collective, by the name of the collective, for
    `Options(algorithm=…)` and `schedule()`."""
    library = _library()

    def names_from(function: Callable[[int], bytes | None]) -> list[str]:
        """Returns what the C function returns for 0, 1, … until it returns NULL."""
        names: list[str] = []
        while (name := function(len(names))) is not None:
            names.append(name.decode())
        return names

    collectives = names_from(library.tutti_collective_name)
    return {collective: names_from(functools.partial(library.tutti_algorithm_name, collective.encode()))
            for collective in collectives}


def schedule(collective: str, algorithm: str, ranks: int, root: int = 0) -> str:
    """Returns the steps of every rank, as text.

    collective, algorithm: names from `algorithms()`. ranks: the size of the group. root: for collectives that have one.
    Raises ValueError, with the nearest name, for a name that does not exist.
    """
    check_int32("schedule", ranks, root)
    print_schedule = functools.partial(_library().tutti_schedule_print, collective.encode(), algorithm.encode())
    return _text(print_schedule, ctypes.c_int(ranks), ctypes.c_int(root))
