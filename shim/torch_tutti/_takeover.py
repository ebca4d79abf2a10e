"""Makes a program that asks torch for another backend, such as "nccl", run on tutti without a change.

torch.distributed creates all groups by one function, `_new_process_group_helper`. During a take-over a wrapper replaces
it, which asks for "tutti" if the program asked for a name that was taken over. All functions that create groups call
it: `init_process_group`, also without a backend and with pairs as in "cpu:gloo,cuda:nccl", `new_group`, DeviceMesh,
also if they were imported earlier.

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
_making = threading.local()                                    # .instead: in a group of a taken-over name
_replaced = Replacements()
_made: Any = weakref.WeakKeyDictionary()                       # group of a taken-over name: what it runs on
_announced: tuple[int, frozenset[str]] = (0, frozenset())      # (process, names) of the last logged line


class TakeOver:
    """A take-over that lasts until `undo()`, or until the end of a `with` block. Existing groups stay tutti's, and are
    named "tutti" then.

    names: the backends that are taken over.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def undo(self) -> None:
        """Ends the take-over; a second call does nothing. Other take-overs of the same name continue."""
        if self in _active:
            _active.remove(self)
            _publish()
            _rename()
            if not _active:
                _replaced.undo()

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
    return _begin(tuple(name.lower() for name in names))


def from_environment() -> None:
    """Begins the take-over of TUTTI_TAKE_OVER; called at the end of `import torch`. Names are checked when the first
    group is created, because an exception here would break `import torch`, and backends may register later."""
    names = parse(os.environ.get(VARIABLE, ""))
    if not names or _active:
        return
    try:
        _begin(names)
    except ImportError as error:
        _say(f"{VARIABLE} has no effect: {error}", "error")


def parse(text: str) -> tuple[str, ...]:
    """The names of a comma-separated list."""
    return tuple(name for piece in text.split(",") if (name := piece.strip().lower()))


def check(names: tuple[str, ...]) -> None:
    """Raises ValueError for names that cannot be taken over."""
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
    """torch 2.14 knows the names of some backends, such as "nccl2", only after they have been named once."""
    from torch.distributed import Backend
    ensure = getattr(Backend, "_ensure_backend_registered", None)
    if ensure is None:
        return
    try:
        ensure(name)
    except Exception as error:
        raise ValueError(f'tutti cannot take over "{name}": torch cannot load this backend: {error}') from error


def accepts_foreign_options(options: Any) -> bool:
    """True if this thread creates a group in place of another backend's. Then `pg_options` of that backend (a program
    that asks for "nccl" passes NCCL's) are ignored, with a log line."""
    if not getattr(_making, "instead", False):
        return False
    _say(f"pg_options of {type(options).__qualname__} have no meaning for tutti and are ignored")
    return True


# ---- wrappers of torch's functions ----
def _begin(names: tuple[str, ...]) -> TakeOver:
    if not _active:
        _replace()
    taken = TakeOver(names)
    _active.append(taken)
    _publish()
    return taken


def _names() -> frozenset[str]:
    return frozenset(name for taken in _active for name in taken.names)


def _publish() -> None:
    """Writes the names into the environment, for child processes."""
    if _active:
        os.environ[VARIABLE] = ",".join(sorted(_names()))
    else:
        os.environ.pop(VARIABLE, None)


def _replace() -> None:
    """Installs the wrappers. Raises ImportError if this torch creates groups in an unknown way."""
    import torch.distributed as distributed
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    original = getattr(c10d, HELPER, None)
    if original is None or "backend" not in parameters_of(original):
        import torch
        raise ImportError(f"torch {torch.__version__} makes its groups in a way that this tutti does not support, so "
                          "it cannot take over names. Write 'tutti' where the program names its backend")
    _replaced.put(c10d, HELPER, _before_helper(c10d, original))
    default = getattr(c10d, "_get_default_timeout", None)
    if default is not None and parameters_of(default) == ("backend",):
        _replaced.put(c10d, "_get_default_timeout", _before_timeout(c10d, default))
    for name in ("nccl", "gloo", "ucc", "xccl"):
        # Only the public function: torch's own code asks the one of distributed_c10d before it uses ProcessGroupNCCL,
        # which may not exist.
        function = f"is_{name}_available"
        if hasattr(distributed, function):
            _replaced.put(distributed, function, _before_available(name, getattr(distributed, function)))


def _rename() -> None:
    """Renames groups whose names are no longer taken over."""
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    known, names = c10d._world.pg_map, _names()
    for group, given in list(_made.items()):
        if group not in known:
            continue
        asked, store = known[group]
        if translate(str(asked), names, _default_backend(c10d)) != given:
            known[group] = (c10d.Backend(given), store)
            del _made[group]


def _before_available(name: str, original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def available() -> bool:
        return name in _names() or original()
    return available


def _before_timeout(c10d: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the default timeout: no warning that torch was built without NCCL, which is not needed then."""
    @functools.wraps(original)
    def timeout(backend: Any) -> Any:
        if str(backend) in _names() and getattr(c10d, "default_pg_nccl_timeout", None) is None:
            return c10d.default_pg_timeout
        return original(backend)
    return timeout


def _before_helper(c10d: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps torch's function that creates groups."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **keywords: Any) -> Any:
        call = signature.bind(*arguments, **keywords)
        asked = call.arguments["backend"]
        names = _names()
        _check_environment(names)
        given = translate(str(asked), names, _default_backend(c10d))
        if given == str(asked):
            return original(*arguments, **keywords)
        call.arguments["backend"] = c10d.Backend(given)
        _making.instead = True
        try:
            group, store = original(*call.args, **call.kwargs)
        finally:
            _making.instead = False
        known = c10d._world.pg_map
        if group in known:
            known[group] = (asked, known[group][1])
            _made[group] = given
            _announce(names, str(asked), given, group)
        return group, store
    return helper


def _check_environment(names: frozenset[str]) -> None:
    """Checks the names, of which those from the environment have not been checked yet."""
    try:
        if names:
            check(tuple(sorted(names)))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={os.environ.get(VARIABLE, '')}: {error}") from None


def _default_backend(c10d: ModuleType) -> str:
    """The backend that torch chooses if the program names none."""
    import torch
    device = torch.accelerator.current_accelerator()
    return str(c10d.Backend.default_device_backend_map.get("cpu" if device is None else device.type, ""))


def translate(asked: str, names: frozenset[str], default: str) -> str:
    """Translates a backend, or a list of device:backend pairs, by replacing the names that are taken over.

    default: the backend that "undefined" stands for, which torch writes if the program names none.
    """
    def one(name: str) -> str:
        return "tutti" if name in names else name

    asked = asked.lower()
    if asked == "undefined":
        return one(default) if default in names else asked
    if ":" not in asked:
        return one(asked)
    pairs = [pair.partition(":") for pair in asked.split(",")]
    if names.isdisjoint(name for _, _, name in pairs):
        return asked
    given = [(device, one(name)) for device, _, name in pairs]
    if sorted(given) == [("cpu", "tutti"), ("cuda", "tutti")]:
        return "tutti"                                  # equivalent, and torch finds the group's default backend
    return ",".join(f"{device}:{name}" for device, name in given)


def _announce(names: frozenset[str], asked: str, given: str, group: Any) -> None:
    """Logs one line in each process, because a typical mistake is a take-over on some ranks only."""
    global _announced
    if _announced == (os.getpid(), names):
        return
    _announced = (os.getpid(), names)
    over = "is taken over" if len(names) == 1 else "are taken over"
    _say(f'rank {group.rank()} asked for backend "{asked}" and gets "{given}", because {", ".join(sorted(names))} '
         f"{over} (torch_tutti.take_over, tutti run or {VARIABLE})")


def _say(text: str, level: str = "warn") -> None:
    if level == "error" or os.environ.get("TUTTI_LOG", "").lower() != "error":
        _log.write(level, text)
