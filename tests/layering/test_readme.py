"""Tests of README.md and docs/settings.md: links and paths of the former exist, it is short, and the latter has the
table of settings of backend/base/settings.h."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = ROOT / "docs/settings.md"


def rows():
    """The rows of SETTINGS_MAP as lines of a table; texts may be several literals, as C joins them."""
    header = (ROOT / "backend/base/settings.h").read_text(encoding="utf-8")
    text = r'((?:"(?:\\.|[^"\\])*"\s*)+)'
    found = re.findall(rf"X\(\w+,\s*{text},\s*\w+,\s*{text},\s*{text},\s*{text}\)", header.replace("\\\n", ""))
    for variable, value, range_, help_ in ([ast.literal_eval(f"({cell})") for cell in row] for row in found):
        yield f"| `{variable}` | {f'`{value}`' if value else ''} | {range_} | {help_} |"


def table():
    return "\n".join(["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|", *rows()])


def test_settings_are_those_of_the_code():
    assert len(list(rows())) >= 9
    assert table() in SETTINGS.read_text(encoding="utf-8"), f"docs/settings.md should have:\n\n{table()}\n"


def test_every_link_and_path_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    paths = re.findall(r"(?:script|examples|tests|include|backend|c_api|kernels|shim)/[\w./]*\w", README)
    assert links and paths
    assert not [path for path in links + paths if not (ROOT / path).exists()]


def test_it_begins_with_the_commands_and_is_short():
    first = "\n".join(README.splitlines()[:45])
    assert all(words in first for words in ("script/demo", "script/test", 'init_process_group("tutti")'))
    assert len(README.splitlines()) <= 90


def test_cells_of_its_tables_are_short():
    cells = [cell.strip() for line in README.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if len(cell) > 120]
