"""How the pages of measurements write sizes, times, ratios and tables."""
KI, MI = 1 << 10, 1 << 20


def size(count):
    return f"{count // MI} Mi" if count >= MI else f"{count // KI} Ki" if count >= KI else str(count)


def time(microseconds):
    """Returns a time with three digits and a unit."""
    factor, unit = next(scale for scale in ((1e3, "ns"), (1, "µs"), (1e-3, "ms"))
                        if microseconds * scale[0] < 999.5 or scale[1] == "ms")
    value = microseconds * factor
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def ratio(value):
    return f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def table(header, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


# ---- the placement of the cores ----
# Flag barriers that differ by a greater factor are of different placements; the same number as in measure.h.
FLAG_MOVED = 1.4


def is_alike(flag, other):
    """Returns true if two flag barriers are of one placement of the cores."""
    return max(flag, other) <= FLAG_MOVED * min(flag, other)


# ---- rows of the C core ----
# The same number as in outcome.h.
LIMIT_GOAL = 1.25


def what(row):
    name = row["case"] + ("" if row["dtype"] == "float32" else f", {row['dtype']}")
    return name + (f", {row['ranks']} ranks" if row["ranks"] != 2 else "")


def where(row):
    return f"{'shared' if row['shared'] else 'private'}{', in place' if row['in_place'] else ''}"


def judge(row):
    """Returns the kind of bound that decides whether a row is met: "goal", or the limit "crossing" or "memory"."""
    return row.get("judged_by", "goal")


def has_moved(row):
    """Returns true if the cores were moved each time that the row was measured. Such a row is neither met nor missed. A
    file of an older run has no such rows."""
    return row.get("moved", False)


def of_limit(row):
    """Returns the time of a row divided by its limit; None if no limit is known."""
    limit_us = max(row.get("limit_us", 0), row.get("crossing_us", 0))
    return row["median_us"] / limit_us if limit_us else None
