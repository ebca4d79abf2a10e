"""Tests of the table in docs/torch.md, which says of each thing that torch asks of a backend whether tutti does it, and
names the tests that prove it: these tests exist, and each claim has one."""
import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/torch.md"
ROWS = 76


def rows():
    """Returns number, what, verdict and reason of each row of the last table."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## What torch asks of a backend")[2]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()
            if re.match(r"\| \d+ \|", line)]


@functools.cache
def functions(path):
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_table_has_every_row():
    assert [int(number) for number, *_ in rows()] == list(range(1, ROWS + 1))


@pytest.mark.parametrize("number, what, verdict, reason", rows(), ids=[row[0] for row in rows()])
def test_row_names_existing_tests_or_a_reason(number, what, verdict, reason):
    assert verdict in ("yes", "GPU", "no"), f"row {number}, {what}: not decided yet"
    if verdict != "yes":
        assert len(reason) > 10, f"row {number} does not say why"
        return
    links = re.findall(r"`([\w/.]+\.py)::(\w+)`", reason)
    assert links and ", ".join(f"`{path}::{name}`" for path, name in links) == reason
    assert not [f"{path}::{name}" for path, name in links if name not in functions(path)]
