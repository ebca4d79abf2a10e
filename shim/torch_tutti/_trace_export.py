"""Converts traces for torch's own reader, `torchfrtrace`. That reader accepts only operations of backends that it knows
by name, in the form in which NCCL records them: one tensor instead of a list, with equal sizes on all ranks. The export
differs from the traces where the reader would come to a wrong result:

- The reader leaves out ranks of a coalesced collective if it happens to read another file before rank 0's. So each part
  of a coalesced collective is written as a collective with its own number.
- The reader compares a send or receive with the operations of all ranks of the group, does not match exchanges, and
  stops at a message with the number of the collective before it. So messages are not written.
"""
from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

from torch_tutti import _recorder
from torch_tutti._trace import Entry, Traces, kind_of

# The number of parts of each coalesced collective that has several, by group name and number of the collective.
Parts = dict[str, dict[int, int]]


def export(traces: Traces, backend: str, folder: str) -> int:
    """Writes all traces into a folder, which it creates, with the operations renamed to those of `backend`. Returns how
    many messages it has left out. Raises ValueError when the folder has other files."""
    os.makedirs(folder, exist_ok=True)
    names = {rank: f"{traces.prefix}{rank}" for rank in traces.of_rank}
    other_files = sorted(set(os.listdir(folder)) - set(names.values()))
    if other_files:
        raise ValueError(f"{folder} has other files, such as {other_files[0]}, which torchfrtrace would read, too: "
                         "name an empty or a new folder")
    parts = coalesced(traces)
    left_out = 0
    for rank, trace in traces.of_rank.items():
        left_out += sum(entry["is_p2p"] and kind_of(entry) != "coalesced" for entry in trace["entries"])
        _recorder.write_trace({**trace, "entries": translated(trace, parts, backend)},
                              os.path.join(folder, names[rank]))
    return left_out


def coalesced(traces: Traces) -> Parts:
    """Returns the number of parts of each coalesced collective that has several, by group and number of the collective.
    If ranks differ, takes the highest number: a rank may have lost the first parts, or not have reached the last."""
    parts: Parts = {}
    for trace in traces.of_rank.values():
        counts = Counter((entry["process_group"][0], entry["collective_seq_id"]) for entry in trace["entries"]
                         if not entry["is_p2p"] and kind_of(entry) != "coalesced")
        for (group, number), count in counts.items():
            if count > parts.get(group, {}).get(number, 1):
                parts.setdefault(group, {})[number] = count
    return parts


def translated(trace: dict[str, Any], parts: Parts, backend: str) -> list[Entry]:
    """Returns the collectives of one rank's trace, renamed to those of `backend`, with a new number for each part of a
    coalesced collective."""
    group_sizes = {name: group["ranks"].count(",") + 1 for name, group in trace["pg_config"].items()}
    written: Counter[tuple[str, int]] = Counter()
    entries = []
    for entry in trace["entries"]:
        group, number = entry["process_group"][0], entry["collective_seq_id"]
        if entry["is_p2p"] or kind_of(entry) == "coalesced":
            continue
        added = sum(count - 1 for earlier, count in parts.get(group, {}).items() if earlier < number)
        entries.append({**_renamed(entry, group_sizes[group], backend), "collective_seq_id":
                        number + added + written[group, number]})
        written[group, number] += 1
    return entries


def _renamed(entry: Entry, group_size: int, backend: str) -> Entry:
    """Returns one operation as `backend` would record it. group_size: the number of ranks in its group."""
    kind, inputs, outputs = _sizes(kind_of(entry), entry["input_sizes"], entry["output_sizes"], group_size)
    return {**entry, "profiling_name": f"{backend}:{kind}", "input_sizes": inputs, "output_sizes": outputs}


def _sizes(kind: str, inputs: list[Any], outputs: list[Any], group_size: int) -> tuple[str, list[Any], list[Any]]:
    """Returns (kind, input sizes, output sizes) as NCCL would record them: a list as one tensor with as many elements.
    Collectives with parts of different sizes get another kind, for which the reader permits them."""
    if kind == "all_gather" and len({math.prod(size) for size in outputs}) > 1:
        return "all_to_all", [[_total(inputs) * group_size]], [[_total(outputs)]]    # each rank sends its part to all
    if kind == "reduce_scatter" and group_size > 1 and _total(inputs) == _total(outputs):
        return "reduce", inputs, outputs                # the part of one rank, if parts differ in size
    if kind in ("all_gather", "all_to_all") and len(outputs) > 1:
        outputs = [[_total(outputs)]]
    if kind in ("reduce_scatter", "all_to_all") and len(inputs) > 1:
        inputs = [[_total(inputs)]]
    return kind, inputs, outputs


def _total(sizes: list[Any]) -> int:
    """Returns the number of elements of all tensors."""
    return sum(math.prod(size) for size in sizes)
