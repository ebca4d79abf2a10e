"""The results of the cases: one JSON file for each (version of torch, way, case) under a folder, which is always
replaced as a whole. A lock beside the file marks a case that a runner works on. The system releases the lock when that
process ends or dies.

Nothing here imports torch.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "shim" / "torch_tutti"


@dataclass
class Result:
    case: str
    way: str
    outcome: str
    reason: str = ""
    """One line: the reason of a skip, or the exception."""
    lines: list[int] | None = None
    """Lines of torch's module: the decorator that skips, or the statement that failed."""
    detail: str = ""
    """The tracebacks of the ranks."""
    seconds: float = 0.0
    mode: str = "fork"
    basis: str = ""
    """The hash of the code that was tested: see `basis`."""


def basis(runs: str) -> str:
    """Returns a hash of the code that the results of a way depend on besides torch: the code that runs the cases, and
    tutti if the way runs on it."""
    names = [HERE / "suite.py", HERE / "ways.py", HERE / "cases.py"]
    if runs == "tutti":
        names += sorted(path for kind in ("*.py", "*.so") for path in PACKAGE.glob(kind))
    return hashlib.sha256(b"".join(hashlib.sha256(name.read_bytes()).digest() for name in names)).hexdigest()[:16]


class Results:
    """The results of one way: reads and writes the files of its cases, and claims cases for this runner."""

    def __init__(self, folder: Path, way: str):
        self.folder = Path(folder) / version("torch") / way
        self.folder.mkdir(parents=True, exist_ok=True)
        self.locks: dict[str, int] = {}

    def read(self, case: str) -> Result | None:
        try:
            return Result(**json.loads((self.folder / f"{case}.json").read_text()))
        # The file does not exist, or has other fields than Result has now.
        except (FileNotFoundError, TypeError, ValueError):
            return None

    def write(self, result: Result) -> None:
        new = self.folder / f"{result.case}.json.{os.getpid()}"
        new.write_text(json.dumps(asdict(result), indent=1) + "\n")
        new.replace(self.folder / f"{result.case}.json")

    def written(self, case: str) -> float:
        return (self.folder / f"{case}.json").stat().st_mtime

    def claim(self, case: str) -> bool:
        """Claims a case. Returns false if another runner works on it. The claim is a record lock, because processes
        that are forked later do not inherit such a lock: it ends with this process, not with the last of its
        children."""
        file = os.open(self.folder / f"{case}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self.locks[case] = file
        return True

    def release(self, case: str) -> None:
        os.close(self.locks.pop(case))
