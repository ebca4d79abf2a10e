"""The statistics of a sharded model as a dict and as text."""
from __future__ import annotations

import resource
import sys
from typing import Any

from torch_tutti._planning.units import bytes_shown, seconds_shown


class Report(dict[str, Any]):
    """The result of ZeroOptimizer.report(): a dict, which str() turns into lines of text."""

    def memory(self) -> str:
        """Returns the most memory so far by kind, in one line."""
        return (f"parameters {bytes_shown(self['parameter_bytes'])}, "
                f"gradients {bytes_shown(self['gradient_peak_bytes'])}, "
                f"optimizer state {bytes_shown(self['state_bytes'])}")

    def __str__(self) -> str:
        waits = {name: seconds_shown(self[f"waited_{name}_ns"] / 1e9) for name in ("use", "sums")}
        return "\n".join((
            f"zero stage {self['stage']}, parameters {self['hosts']}, {self['steps']} steps",
            f"memory at most: {self.memory()}; the process {bytes_shown(self['process_peak_bytes'])}",
            f"waits: {waits['sums']} for sums of gradients, {waits['use']} for updates of other ranks; "
            f"{self['late_units']} units before their turn, {self['unforeseen']} not prefetched",
            f"bytes: {bytes_shown(self['sum_bytes'])} of gradients summed, {bytes_shown(self['packed_bytes'])} of them "
            f"sent compressed, {bytes_shown(self['moved_bytes'])} of parameters received"))


def process_peak_bytes() -> int:
    """Returns the most memory that this process has used."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
