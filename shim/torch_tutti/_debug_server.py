"""Two pages for the worker servers of torch's debug server (`torch.distributed.debug`), one for each rank. torch's own
recorder has no operations of tutti before torch 2.15, and its functions `_dump_…` take no others.

/handler/tutti_trace_json: the flight recorder's file as JSON. /handler/tutti_status_json: what `tutti status --json`
prints for the job of this process."""
from __future__ import annotations

import json
import os
from types import ModuleType
from typing import Any

_registered = False


def register(extension: ModuleType) -> None:
    """Adds the pages to the worker server of this process, once. The server may start before or after this."""
    global _registered
    if not _registered:
        _registered = True
        extension._register_pages(list(_PAGES))


def page(name: str) -> tuple[int, str]:
    """Returns the status and the text of a page. An exception becomes a page with its text."""
    try:
        return 200, json.dumps(_PAGES[name]())
    except Exception as error:
        return 500, json.dumps({"error": str(error)})


def _trace() -> dict[str, Any]:
    from torch_tutti import _recorder
    return _recorder.read()


def _status() -> dict[str, Any]:
    from torch_tutti import _status_command
    return _status_command.as_json(_status_command.jobs_of(os.getpid()))


_PAGES = {"tutti_trace_json": _trace, "tutti_status_json": _status}
