"""Makes a program that asks torch for another backend, such as "nccl", run on tutti without a change.

torch.distributed creates all groups by one function, `_new_process_group_helper`. During a take-over a wrapper replaces
it, which asks for "tutti" if the program asked for a name that was taken over. All functions that create groups call
it: `init_process_group`, also without a backend and with pairs as in "cpu:gloo,cuda:nccl", `new_group`, DeviceMesh,
also if the program imported them before the take-over.

Invariants: a group keeps the name that its program asked for, so `get_backend` returns "nccl" and comparisons in the
program still work; `get_backend_config` returns what the group runs on. When the last take-over of a name ends, its
groups get the name of what they run on, because torch creates further groups by the default group's name. torch never
sees the type of another backend, whose methods it would call. The names are also in the environment, so that child
processes do the same. This module is imported only for a take-over."""
from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, Callable

from torch_tutti import _log
from torch_tutti._replacements import Replacements, parameters_of

VARIABLE = "TUTTI_TAKE_OVER"
HELPER = "_new_process_group_helper"
# Names that cannot be taken over, and why.
REFUSED = {
    "tutti": "it already is tutti",
    "undefined": "it is not a backend",
    "mpi": "torch makes its groups without a store, so tutti's ranks could not find each other",
    "fake": "torch makes its groups without a store, so tutti's ranks could not find each other",
}
_active: list[TakeOver] = []
# `instead`: this thread creates a tutti group in place of another backend's.
_making = threading.local()
_replacements = Replacements()
# The backends of each group that was created under a name that was taken over.
_backends_of: Any = weakref.WeakKeyDictionary()
# The process that has logged a take-over.
_announced = 0


class TakeOver:
    """A take-over that lasts until `undo()`, or until the end of a `with` block. Then its groups stay on tutti, and
    get the name of what they run on.

    names: the backends that are taken over.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def undo(self) -> None:
        """Ends the take-over; a second call does nothing. Other take-overs of the same name continue."""
        if self in _active:
            _active.remove(self)
            _export_names()
            _rename_groups()
            if not _active:
                _replacements.undo()

    def __enter__(self) -> TakeOver:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"TakeOver({', '.join(map(repr, self.names))}{'' if self in _active else ', undone'})"


def take_over(*names: str) -> TakeOver:
    """Makes new groups of these backends run on tutti, in this process and in its children. Call it before
    `init_process_group`, on all ranks.

    torch_tutti.take_over("nccl", "gloo") or, around a program: tutti run train.py

    Returns an object with `undo()`, which is also a context manager. `get_backend` still returns the name that was
    asked for; `get_backend_config` returns what runs. Each process that creates such a group writes one line to
    standard error. Raises ValueError for a name that torch does not know."""
    check(names)
    return _begin_take_over(tuple(name.lower() for name in names))


def from_environment() -> None:
    """Begins the take-over of TUTTI_TAKE_OVER; called at the end of `import torch`. Names are checked when the first
    group is created, because an exception here would break `import torch`, and backends may register later."""
    names = parse(os.environ.get(VARIABLE, ""))
    if not names or _active:
        return
    try:
        _begin_take_over(names)
    except ImportError as error:
        _write_log(f"{VARIABLE} has no effect: {error}", "error")


def parse(text: str) -> tuple[str, ...]:
    """Returns the names of a comma-separated list, in lower case."""
    return tuple(name for part in text.split(",") if (name := part.strip().lower()))


def check(names: tuple[str, ...]) -> None:
    """Raises ValueError if one of these names cannot be taken over, or if there are none."""
    from torch.distributed import Backend
    if not names:
        raise ValueError('take_over needs names of backends, as in take_over("nccl", "gloo")')
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"take_over takes names of backends as str, not {type(name).__name__}")
        if name.lower() in REFUSED:
            raise ValueError(f'tutti cannot take over "{name}": {REFUSED[name.lower()]}')
        _load_backend(name)
        if name.lower() not in Backend.backend_list:
            known = [known for known in Backend.backend_list if known not in REFUSED]
            raise ValueError(f'tutti cannot take over "{name}": torch knows no backend of this name; it knows '
                             f"{', '.join(known)}")


def _load_backend(name: str) -> None:
    """Makes torch load a backend: torch 2.14 knows the names of some, such as "nccl2", only afterwards. Raises
    ValueError if that fails. Does nothing for older versions of torch."""
    from torch.distributed import Backend
    ensure = getattr(Backend, "_ensure_backend_registered", None)
    if ensure is None:
        return
    try:
        ensure(name)
    except Exception as error:
        raise ValueError(f'tutti cannot take over "{name}": torch cannot load this backend: {error}') from error


def accepts_foreign_options(options: Any) -> bool:
    """Returns whether this thread creates a group in place of another backend's. Then `pg_options` of that backend (a
    program that asks for "nccl" passes NCCL's) are ignored, with a log line."""
    if not getattr(_making, "instead", False):
        return False
    _write_log(f"pg_options of {type(options).__qualname__} have no meaning for tutti and are ignored")
    return True


# ---- wrappers of torch's functions ----
def _begin_take_over(names: tuple[str, ...]) -> TakeOver:
    """Begins the take-over of these names, which have been checked. Installs the wrappers if no take-over is active."""
    if not _active:
        _install_wrappers()
    taken = TakeOver(names)
    _active.append(taken)
    _export_names()
    return taken


def _taken_over_names() -> frozenset[str]:
    """Returns the names of all active take-overs."""
    return frozenset(name for taken in _active for name in taken.names)


def _export_names() -> None:
    """Writes the names into the environment, for child processes."""
    if _active:
        os.environ[VARIABLE] = ",".join(sorted(_taken_over_names()))
    else:
        os.environ.pop(VARIABLE, None)


def _install_wrappers() -> None:
    """Installs the wrappers. Raises ImportError if this torch creates groups in an unknown way."""
    import torch.distributed as distributed
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    original = getattr(c10d, HELPER, None)
    if original is None or "backend" not in parameters_of(original):
        import torch
        raise ImportError(f"torch {torch.__version__} makes its groups in a way that this tutti does not support, so "
                          "it cannot take over names. Write 'tutti' where the program names its backend")
    _replacements.put(c10d, HELPER, _wrap_helper(c10d, original))
    default_timeout = getattr(c10d, "_get_default_timeout", None)
    if default_timeout is not None and parameters_of(default_timeout) == ("backend",):
        _replacements.put(c10d, "_get_default_timeout", _wrap_default_timeout(c10d, default_timeout))
    for name in ("nccl", "gloo", "ucc", "xccl"):
        # Only the public function: torch's own code asks the one of distributed_c10d before it uses ProcessGroupNCCL,
        # which may not exist.
        function = f"is_{name}_available"
        if hasattr(distributed, function):
            _replacements.put(distributed, function, _wrap_available(name, getattr(distributed, function)))


def _rename_groups() -> None:
    """Renames groups whose names are no longer taken over to the backends that they run on."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    groups, names = c10d._world.pg_map, _taken_over_names()
    for group, backend in list(_backends_of.items()):
        if group not in groups:
            continue
        requested, store = groups[group]
        if translate(str(requested), names, _default_backend(c10d)) != backend:
            groups[group] = (c10d.Backend(backend), store)
            del _backends_of[group]


def _wrap_available(name: str, original: Callable[[], bool]) -> Callable[[], bool]:
    """Returns an is_…_available() that is also true while the name is taken over."""
    @functools.wraps(original)
    def available() -> bool:
        return name in _taken_over_names() or original()
    return available


def _wrap_default_timeout(c10d: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gives torch's default timeout. For a name that is taken over it does not warn that torch
    was built without NCCL, which is not needed then."""
    @functools.wraps(original)
    def timeout(backend: Any) -> Any:
        """Returns torch's default timeout of a backend."""
        if str(backend) in _taken_over_names() and getattr(c10d, "default_pg_nccl_timeout", None) is None:
            return c10d.default_pg_timeout
        return original(backend)
    return timeout


def _wrap_helper(c10d: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that creates groups as torch's does, on tutti if the program asks for a name that is taken
    over. Such a group keeps the name in torch's tables."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **keywords: Any) -> Any:
        """Creates a group as torch does, on tutti if the requested backend is taken over. Returns torch's (group,
        store)."""
        call = signature.bind(*arguments, **keywords)
        requested = call.arguments["backend"]
        names = _taken_over_names()
        _check_environment(names)
        backend = translate(str(requested), names, _default_backend(c10d))
        if backend == str(requested):
            return original(*arguments, **keywords)
        call.arguments["backend"] = c10d.Backend(backend)
        _making.instead = True
        try:
            group, store = original(*call.args, **call.kwargs)
        finally:
            _making.instead = False
        groups = c10d._world.pg_map
        if group in groups:
            groups[group] = (requested, groups[group][1])
            _backends_of[group] = backend
            _log_take_over(names, str(requested), backend, group)
        return group, store
    return helper


def _check_environment(names: frozenset[str]) -> None:
    """Raises ValueError for names that cannot be taken over: those from the environment have not been checked
    before."""
    try:
        if names:
            check(tuple(sorted(names)))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={os.environ.get(VARIABLE, '')}: {error}") from None


def _default_backend(c10d: ModuleType) -> str:
    """Returns the backend that torch chooses if the program names none."""
    import torch
    device = torch.accelerator.current_accelerator()
    return str(c10d.Backend.default_device_backend_map.get("cpu" if device is None else device.type, ""))


def translate(requested: str, names: frozenset[str], default: str) -> str:
    """Returns a backend, or a list of device:backend pairs, with "tutti" in place of the names that are taken over.

    requested: the backend that the program asks for. names: those that are taken over. default: the backend that
    "undefined" stands for, which torch passes if the program names none.
    """
    def translate_name(name: str) -> str:
        return "tutti" if name in names else name

    requested = requested.lower()
    if requested == "undefined":
        return translate_name(default) if default in names else requested
    if ":" not in requested:
        return translate_name(requested)
    pairs = [pair.partition(":") for pair in requested.split(",")]
    if names.isdisjoint(name for _, _, name in pairs):
        return requested
    translated = [(device, translate_name(name)) for device, _, name in pairs]
    if sorted(translated) == [("cpu", "tutti"), ("cuda", "tutti")]:
        return "tutti"                                  # equivalent, and torch finds the group's default backend
    return ",".join(f"{device}:{name}" for device, name in translated)


def _log_take_over(names: frozenset[str], requested: str, backend: str, group: Any) -> None:
    """Logs one line in each process, for the first group: a typical mistake is a take-over on some ranks only.
    requested, backend: what the program asked for, and what the group runs on."""
    global _announced
    if _announced == os.getpid():
        return
    _announced = os.getpid()
    verb = "is taken over" if len(names) == 1 else "are taken over"
    _write_log(f'rank {group.rank()} asked for backend "{requested}" and gets "{backend}", because '
               f'{", ".join(sorted(names))} '
               f"{verb} (torch_tutti.take_over, tutti run or {VARIABLE})", "info")


def _write_log(text: str, level: str = "warn") -> None:
    """Writes a line of the log if TUTTI_LOG, by default "warn", admits its level."""
    levels = ["error", "warn", "info", "debug"]
    limit = os.environ.get("TUTTI_LOG", "").lower()
    if levels.index(level) <= levels.index(limit if limit in levels else "warn"):
        _log.write(level, text)
