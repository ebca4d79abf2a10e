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


def of_limit(row):
    """Returns the time of a row divided by its limit; None if no limit is known."""
    limit_us = max(row.get("limit_us", 0), row.get("crossing_us", 0))
    return row["median_us"] / limit_us if limit_us else None
