"""Options for the operations that a thread starts in a block. The extension keeps the open blocks of each thread.
Importing this module imports torch.distributed."""
from __future__ import annotations

import functools
import itertools
from datetime import timedelta
from types import TracebackType

from torch_tutti import _tags
from torch_tutti._extension import load
from torch_tutti._library import algorithms

_open, _close = load()._options_open, load()._options_close
_numbers = itertools.count(1)


class options:
    """Context manager: options for the operations that this thread starts in the block.

    algorithm: a name, for every collective that has an algorithm of that name, or choices such as
    "allreduce=ring,broadcast=chain"; the same on all ranks. timeout: for each operation; a timeout of the call itself
    has precedence. tag: a text of at most 60 characters that names the operations in errors, traces, profiles and, for
    the main thread, in `tutti status`. Blocks may be nested; the innermost one decides. Other threads are not
    affected. Raises ValueError for an unknown name (if it is in choices, the first collective in the block raises the
    error), for a timeout below a millisecond and for a tag that is too long or not printable, and RuntimeError if a
    block is left on another thread than the one that entered it.
    """

    def __init__(self, *, algorithm: str = "", timeout: timedelta | None = None, tag: str = "") -> None:
        if timeout is not None and timeout < timedelta(milliseconds=1):
            raise ValueError("options: the timeout must be at least a millisecond")
        if len(tag) > _tags.MOST_CHARACTERS or not tag.isprintable() or '"' in tag:
            raise ValueError(f"options: a tag has at most {_tags.MOST_CHARACTERS} printable characters and no "
                             f"quotation marks, unlike {tag!r}")
        self._tag = tag
        self._choices, self._timeout, self._number = _choices(algorithm), timeout, next(_numbers)

    def __enter__(self) -> options:
        _open(self._number, self._choices, self._timeout, self._tag)
        if self._tag:
            _tags.enter(self._number, self._tag)
        return self

    def __exit__(self, error: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Closes the block. Raises RuntimeError on another thread than the one that has entered it."""
        if self._tag:
            _tags.leave(self._number)
        if not _close(self._number):
            raise RuntimeError("options: this block was not entered on this thread; a block that a generator or a "
                               "coroutine entered must be left on the same thread")


@functools.cache
def _choices(algorithm: str) -> str:
    """Turns the name of an algorithm into a choice for every collective that has an algorithm of this name. A list of
    choices stays as it is. Raises ValueError for an unknown name."""
    if "=" in algorithm or not algorithm:
        return algorithm
    choices = [f"{collective}={algorithm}" for collective, names in algorithms().items() if algorithm in names]
    if not choices:
        raise ValueError(f'options: no collective has an algorithm "{algorithm}"; torch_tutti.algorithms() lists them')
    return ",".join(choices)
