"""What the library can tell without any group, through ctypes: needs neither the extension nor, until something fails,
torch."""
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


def _check(status: int) -> None:
    if status == 0:
        return
    library = _library()
    text = library.tutti_get_last_error().decode()
    from torch_tutti import exceptions
    raise exceptions._BY_STATUS.get(status, exceptions.InternalError)(text)


def fits(what: str, *numbers: int) -> None:
    """What C takes as an int; ctypes would cut others off."""
    for number in numbers:
        if not isinstance(number, int) or not -(1 << 31) <= number < 1 << 31:
            raise ValueError(f"{what}: {number} is not a 32-bit integer")


@functools.cache
def dtype_numbers() -> dict[bytes, int]:
    """Of element types, by their names."""
    library = _library()
    library.tutti_dtype_name.restype = ctypes.c_char_p
    found: dict[bytes, int] = {}
    while (text := library.tutti_dtype_name(len(found))) is not None and library.tutti_dtype_bytes(len(found)):
        found[text] = len(found)
    return found


def _text(call: Callable[..., int], *arguments: Any) -> str:
    """What a call of the kind (…, buffer, capacity, &bytes) writes: asked for its length first."""
    needed = ctypes.c_size_t(0)
    _check(call(*arguments, None, ctypes.c_size_t(0), ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value + 1)
    _check(call(*arguments, buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(needed)))
    return buffer.value.decode()


def get_include() -> str:
    """The folder of tutti.h, for a C compiler's -I. The command `tutti config` prints all that it needs."""
    return str(_PATH.parent / "include")


def pkgconfig_folder() -> str:
    """The folder of tutti.pc, for PKG_CONFIG_PATH."""
    return str(_PATH.parent / "pkgconfig")


def flags(compiling: bool, linking: bool) -> str:
    """What a C compiler needs besides the program. Programs find the library where it lies now."""
    folder = str(_PATH.parent)
    words = [f"-I{get_include()}"] if compiling else []
    words += [f"-L{folder}", "-ltutti", f"-Wl,-rpath,{folder}"] if linking else []
    return shlex.join(words)


def version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def info() -> dict[str, Any]:
    """Versions, instruction set, transports (or why one is missing), limits and settings of this process: what a bug
    report needs."""
    from torch_tutti import _autoload, _installation
    packages = {"torch-tutti": version_of("torch-tutti"), "torch": version_of("torch"),
                "built for torch": _installation.built_for()}
    return {"packages": packages, "registration problem": _autoload.problem, **json.loads(_text(_library().tutti_info))}


def waiting() -> dict[str, int]:
    """How this process has waited for others so far, over all its threads and groups; take the difference of two calls.

    yields: how often it gave its core away between two looks; sleeps, asleep_ns: how often it slept until woken, and
    for how long; timed_out: sleeps that nobody ended; late: of these, those that somebody should have ended (more than
    a few are an error of tutti); naps: sleeps that nobody would end; wakes: calls of the system to end sleeps of
    others. Waits that end within some microseconds are in none of them.
    """
    library, found = _library(), {}
    while (name := library.tutti_waiting_name(len(found))) is not None:
        found[name.decode()] = library.tutti_waiting_count(len(found))
    return found


def algorithms() -> dict[str, list[str]]:
    """The names of the algorithms of every collective, as `Options(algorithm=…)` and `schedule()` take them."""
    library = _library()

    def names(call: Callable[[int], bytes | None]) -> list[str]:
        found: list[str] = []
        while (name := call(len(found))) is not None:
            found.append(name.decode())
        return found

    collectives = names(library.tutti_collective_name)
    return {c: names(functools.partial(library.tutti_algorithm_name, c.encode())) for c in collectives}


def schedule(collective: str, algorithm: str, ranks: int, root: int = 0) -> str:
    """The steps of every rank, as text.

    collective, algorithm: names from `algorithms()`. ranks: size of the group. root: for collectives that have one.
    Raises ValueError, with the nearest name, for a name that does not exist.
    """
    fits("schedule", ranks, root)
    call = functools.partial(_library().tutti_schedule_print, collective.encode(), algorithm.encode())
    return _text(call, ctypes.c_int(ranks), ctypes.c_int(root))
