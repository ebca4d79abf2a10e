"""Tests that README.md is short and its links and paths exist, and that docs/settings.md has the settings of
backend/base/settings.h."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = ROOT / "docs/settings.md"


def rows():
    """Yields the rows of SETTINGS_MAP as lines of a Markdown table. A text may be several literals, which C joins."""
    header = (ROOT / "backend/base/settings.h").read_text(encoding="utf-8")
    text = r'((?:"(?:\\.|[^"\\])*"\s*)+)'
    found = re.findall(rf"X\(\w+,\s*{text},\s*\w+,\s*{text},\s*{text},\s*{text}\)", header.replace("\\\n", ""))
    for variable, value, range_, help_ in ([ast.literal_eval(f"({cell})") for cell in row] for row in found):
        yield f"| `{variable}` | {f'`{value}`' if value else ''} | {range_} | {help_} |"


def table():
    return "\n".join(["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|", *rows()])


def test_settings_page_has_the_table_of_the_code():
    assert len(list(rows())) >= 9
    assert table() in SETTINGS.read_text(encoding="utf-8"), f"docs/settings.md should have:\n\n{table()}\n"


def test_every_link_and_path_of_the_readme_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    paths = re.findall(r"(?:script|examples|tests|include|backend|c_api|kernels|shim)/[\w./]*\w", README)
    assert links and paths
    assert not [path for path in links + paths if not (ROOT / path).exists()]


def test_readme_begins_with_commands_and_is_short():
    first = "\n".join(README.splitlines()[:45])
    assert all(words in first for words in ("script/demo", "script/test", 'init_process_group("tutti")'))
    assert len(README.splitlines()) <= 90


def test_table_cells_of_the_readme_are_short():
    cells = [cell.strip() for line in README.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if len(cell) > 120]
