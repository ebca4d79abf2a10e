"""Traces for torch's own reader, `torchfrtrace`. It takes operations of the backends that it knows by name only, and
expects of each what NCCL records: one tensor where there is a list, and the same on all ranks. What is written here
says the same in its words, except where it would come to a wrong verdict:

- of coalesced collectives it leaves ranks out, when it happens to read another file than rank 0's first; so each part
  of one is written as a collective with a number of its own;
- a send or receive it compares with what all ranks of the group do, an exchange it does not match, and a message whose
  number is that of the collective before it makes it stop; so messages are not written.
"""
from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

from torch_tutti import _recorder
from torch_tutti._trace import Entry, Traces, kind_of

Parts = dict[str, dict[int, int]]       # of which group, in which call: how many parts, where there are several


def export(traces: Traces, backend: str, folder: str) -> int:
    """Writes all traces, with operations called `backend`'s, into a folder, which is made; how many messages were
    left out. Raises ValueError when the folder has other files."""
    os.makedirs(folder, exist_ok=True)
    names = {rank: f"{traces.prefix}{rank}" for rank in traces.of_rank}
    strangers = sorted(set(os.listdir(folder)) - set(names.values()))
    if strangers:
        raise ValueError(f"{folder} has other files, such as {strangers[0]}, which torchfrtrace would read, too: "
                         "name an empty or a new folder")
    parts = coalesced(traces)
    left_out = 0
    for rank, trace in traces.of_rank.items():
        left_out += sum(entry["is_p2p"] and kind_of(entry) != "coalesced" for entry in trace["entries"])
        _recorder.put({**trace, "entries": translated(trace, parts, backend)}, os.path.join(folder, names[rank]))
    return left_out


def coalesced(traces: Traces) -> Parts:
    """Of the rank that knows most, because another may have lost the first parts or not come to the last."""
    parts: Parts = {}
    for trace in traces.of_rank.values():
        counts = Counter((entry["process_group"][0], entry["collective_seq_id"]) for entry in trace["entries"]
                         if not entry["is_p2p"] and kind_of(entry) != "coalesced")
        for (group, number), count in counts.items():
            if count > parts.get(group, {}).get(number, 1):
                parts.setdefault(group, {})[number] = count
    return parts


def translated(trace: dict[str, Any], parts: Parts, backend: str) -> list[Entry]:
    """The collectives of one rank."""
    ranks = {name: group["ranks"].count(",") + 1 for name, group in trace["pg_config"].items()}
    seen: Counter[tuple[str, int]] = Counter()
    entries = []
    for entry in trace["entries"]:
        group, number = entry["process_group"][0], entry["collective_seq_id"]
        if entry["is_p2p"] or kind_of(entry) == "coalesced":
            continue
        before = sum(count - 1 for earlier, count in parts.get(group, {}).items() if earlier < number)
        entries.append({**_renamed(entry, ranks[group], backend), "collective_seq_id":
                        number + before + seen[group, number]})
        seen[group, number] += 1
    return entries


def _renamed(entry: Entry, ranks: int, backend: str) -> Entry:
    """One operation of a group of so many ranks."""
    kind, inputs, outputs = _sizes(kind_of(entry), entry["input_sizes"], entry["output_sizes"], ranks)
    return {**entry, "profiling_name": f"{backend}:{kind}", "input_sizes": inputs, "output_sizes": outputs}


def _sizes(kind: str, inputs: list[Any], outputs: list[Any], ranks: int) -> tuple[str, list[Any], list[Any]]:
    """What to call it, and lists as the one tensor that they would be."""
    if kind == "all_gather" and len({math.prod(size) for size in outputs}) > 1:
        return "all_to_all", [[_total(inputs) * ranks]], [[_total(outputs)]]    # each sends its part to all
    if kind == "reduce_scatter" and ranks > 1 and _total(inputs) == _total(outputs):
        return "reduce", inputs, outputs                # the part of one rank, of parts that differ in size
    if kind in ("all_gather", "all_to_all") and len(outputs) > 1:
        outputs = [[_total(outputs)]]
    if kind in ("reduce_scatter", "all_to_all") and len(inputs) > 1:
        inputs = [[_total(inputs)]]
    return kind, inputs, outputs


def _total(sizes: list[Any]) -> int:
    return sum(math.prod(size) for size in sizes)
