"""The measurements of each processor: a file in docs/measured for each, written by `script/bench page` on a machine
that has it, and the tables of docs/performance.md that compare them. A file is named after the processor. A measurement
on another processor adds a file. A measurement on the same one replaces the sections that were measured again; the
other sections keep their dates.

A file that script/bench has not written has `"partial": true`, gives its source, and has only the rows that are known.
"""
import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from words import has_moved, judge, of_limit, ratio, size, table, what, where

VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "HygonGenuine": "hygon", "0x41": "arm"}
KINDS = ("private", "shared")


# ---- the processor ----
def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown"


def value_in(path, name):
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "unknown")


def caches():
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, amount = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and int(level) > 1:
            found.append(f"L{level} {amount.replace('K', ' KiB')}")
    return ", ".join(found) or "caches unknown"


def identity(cpuinfo="/proc/cpuinfo"):
    """Returns the name, vendor, family, model, cores and caches of this processor. Arm has numbers of an implementer
    and a part instead of names."""
    said = {key: value_in(cpuinfo, name) for key, name in (
        ("name", "model name"), ("vendor", "vendor_id"), ("family", "cpu family"), ("model", "model"))}
    if said["vendor"] == "unknown":
        said.update(vendor=value_in(cpuinfo, "CPU implementer"), model=value_in(cpuinfo, "CPU part"))
    if said["name"] == "unknown":
        said["name"] = platform.machine()
    return {**{key: value for key, value in said.items() if value != "unknown"}, "cores": os.cpu_count(),
            "caches": caches()}


def full_name(processor):
    said = [f"{key} {processor[key]}" for key in ("family", "model") if key in processor]
    return processor["name"] + (f" ({', '.join(said)})" if said else "")


def file_name(processor):
    """Returns the name of a processor's file, such as amd-epyc-family26-model2-2cores.json."""
    words = re.sub(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", " ", processor["name"].lower())
    vendor = processor.get("vendor", "")
    parts = [VENDORS.get(vendor, vendor), words.replace(VENDORS.get(vendor, "-"), " ")]
    parts += [f"{key}{processor[key]}" for key in ("family", "model") if key in processor]
    return re.sub(r"[^a-z0-9]+", "-", "-".join([*parts, f"{processor['cores']}cores"]).lower()).strip("-") + ".json"


def versions():
    from importlib.metadata import version
    return {"system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
            "compiler": first_line("cc", "--version"), "torch": version("torch")}


# ---- a file ----
def ratios(times):
    """Returns the time of each other library divided by tutti's, by kind of tutti's tensors (KINDS)."""
    return {kind: {name: round(value / times[ours], 3) for name, value in times.items() if not name.startswith("tutti")}
            for kind, ours in zip(KINDS, ("tutti", "tutti, shared")) if ours in times}


def is_behind(row, kind):
    """Returns true if another library is faster than tutti with this kind of tensors."""
    return kind in row["ratios"] and min(row["ratios"][kind].values(), default=1) < 1


def compared(rows):
    """Returns the section of a file: the rows and, by kind of tensors, the number of comparisons and of those in which
    another library is faster than tutti."""
    counts = {kind: {"of": sum(bool(row["ratios"].get(kind)) for row in rows),
                     "behind": sum(is_behind(row, kind) for row in rows)} for kind in KINDS}
    return {"counts": {kind: count for kind, count in counts.items() if count["of"]}, "rows": rows}


def judged(rows):
    """Returns the section of a file: the rows, the number of judged ones and of those that are met; and the number of
    rows that are not judged because the cores moved each time, if there are any."""
    counted = [row for row in rows if not has_moved(row)]
    moved = {"moved": len(rows) - len(counted)} if len(rows) > len(counted) else {}
    return {"of": len(counted), "met": sum(row["met"] for row in counted), **moved, "rows": rows}


def sections(results, today):
    """Yields the sections (name, content) that this run has measured."""
    if "core" in results:
        flags = [row["flag_ns"] for row in results["core"]["rows"] if row["flag_ns"]]
        yield "goals", {"date": today, "flag_ns": [min(flags, default=0), max(flags, default=0)],
                        **judged([row for row in results["core"]["rows"] if row["goal"]])}
    if "peers" in results:
        yield "peers", {"date": today, **compared([
            {**{key: row[key] for key in ("collective", "bytes", "flag_ns") if key in row}, "times_us": row["times"],
             "ratios": ratios(row["times"])} for row in results["peers"]["rows"]])}
    if "regret" in results:
        yield "regret", results["regret"]


def add(results, folder, processor=None):
    """Writes what was measured into the file of this processor, and returns its path; None if nothing was measured."""
    found = dict(sections(results, str(datetime.date.today())))
    if not found:
        return None
    processor = processor or identity()
    path = folder / file_name(processor)
    before = read(path) if path.exists() else {}
    kept = {} if before.get("partial") else {key: before[key] for key in ("goals", "peers", "regret") if key in before}
    folder.mkdir(parents=True, exist_ok=True)
    write(path, {"processor": processor, "versions": versions(), **kept, **found})
    return path


def write(path, document):
    """Writes a file with a line for each row, so that a diff shows which rows have changed."""
    parts = []
    for key, value in document.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict) and isinstance(value.get("rows"), list):
            head = json.dumps({name: part for name, part in value.items() if name != "rows"}, ensure_ascii=False)[:-1]
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value["rows"])
            text = f'{head}{", " if head != "{" else ""}"rows": [\n  {rows}\n ]}}'
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# ---- reading ----
NEEDED = {"processor": {"name", "cores"}, "goals": {"met", "of", "rows"}, "peers": {"counts", "rows"}}
NEEDED_IN_ROWS = {"goals": {"case", "bytes", "ranks", "dtype", "in_place", "shared", "goal", "ratio", "met"},
                  "peers": {"collective", "bytes", "ratios"}}


def lacking(found, keys):
    return ", ".join(sorted(keys - (found.keys() if isinstance(found, dict) else set())))


def faults(document):
    """Yields the faults of a file as texts: keys that it lacks, and for each section the first fault of its rows."""
    if not isinstance(document, dict):
        yield "it is no object"
        return
    for section, keys in NEEDED.items():
        found = document.get(section, {} if section == "processor" else None)
        if found is None:
            continue
        if lacks := lacking(found, keys):
            yield f"'{section}' lacks {lacks}"
        elif section in NEEDED_IN_ROWS:
            yield from list(faults_of_rows(section, found["rows"]))[:1]
    if document.get("partial") and "source" not in document:
        yield "it is partial and has no 'source'"


def faults_of_rows(section, rows):
    if not isinstance(rows, list):
        yield f"the rows of '{section}' are no list"
        return
    for number, row in enumerate(rows, 1):
        if lacks := lacking(row, NEEDED_IN_ROWS[section]):
            yield f"row {number} of '{section}' lacks {lacks}"


def read(path):
    """Returns the document of a file. Raises ValueError with its path and its faults if it is broken."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        wrong = "; ".join(faults(document))
    except ValueError as error:
        wrong = f"it is not JSON: {error}"
    if wrong:
        raise ValueError(f"{path} is broken: {wrong}. Mend it, or delete it and run script/bench on that processor")
    return document


def read_all(folder):
    """Returns {name: document}, complete ones first."""
    found = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(found.items(), key=lambda item: bool(item[1].get("partial"))))


# ---- side by side ----
def ahead(document, kind):
    count = document.get("peers", {}).get("counts", {}).get(kind)
    return f"{count['of'] - count['behind']} of {count['of']}" if count else ""


def summary(documents):
    lines = []
    for name, document in documents.items():
        processor, goals = document["processor"], document.get("goals")
        dates = {document[part].get("date", "earlier") for part in ("goals", "peers") if part in document}
        flags = goals.get("flag_ns") if goals else None
        lines.append([f"[{name}]({name}.json)", full_name(processor), processor["cores"],
                      processor.get("caches", ""), f"{flags[0]:.0f} to {flags[1]:.0f}" if flags else "",
                      " and ".join(sorted(dates)), f"{goals['met']} of {goals['of']}" if goals else "",
                      *(ahead(document, kind) for kind in KINDS)])
    return table(["file", "processor", "cores", "caches", "flag, ns", "measured", "goals met",
                  "not behind MPI, private", "shared"], lines)


def key(row):
    return tuple(row[name] for name in ("case", "dtype", "ranks", "bytes", "in_place", "shared"))


def goal_cell(row):
    if row is None:
        return ""
    by, times = judge(row), of_limit(row) if "median_us" in row else None
    said = "" if by == "goal" else f"; {ratio(times)} × limit: {by}"
    verdict = ", moved" if has_moved(row) else "" if row["met"] else ", **no**"
    return f"{ratio(row['ratio'])}{said}{verdict}"


def goals_beside(documents):
    """Returns a table of the ratio of each row on each processor."""
    found = {name: {key(row): row for row in document["goals"]["rows"]} for name, document in documents.items()
             if "goals" in document}
    first = {}
    for rows in found.values():
        for place, row in rows.items():
            first.setdefault(place, row)
    return table(["case", "bytes", "tensors", "goal", *found],
                 [[what(row), size(row["bytes"]), where(row), f"≤ {row['goal']:g}",
                   *(goal_cell(rows.get(place)) for rows in found.values())] for place, row in first.items()])


def behind_beside(documents):
    """Returns a table of the collectives and sizes in which another library is faster than tutti, on each processor."""
    lines = []
    for name, document in documents.items():
        for kind in KINDS:
            rows = [row for row in document.get("peers", {}).get("rows", []) if is_behind(row, kind)]
            for collective in dict.fromkeys(row["collective"] for row in rows):
                cells = [f"{size(row['bytes'])}: " + ", ".join(
                    f"{library} {ratio(value)}" for library, value in row["ratios"][kind].items() if value < 1)
                    for row in rows if row["collective"] == collective]
                lines.append([name, kind, collective, "; ".join(cells)])
    return table(["processor", "tensors", "collective", "MPI ÷ tutti, where it is below 1"], lines)


def of_partial(documents):
    """Yields for each partial file a sentence with the source of its figures, and its notes on figures that no row can
    have."""
    for name, document in documents.items():
        if document.get("partial"):
            yield f"{name} is partial: {' '.join([document['source'] + '.', *document.get('notes', [])])}"


def beside(documents):
    return "\n\n".join([summary(documents), *of_partial(documents), goals_beside(documents), behind_beside(documents)])
