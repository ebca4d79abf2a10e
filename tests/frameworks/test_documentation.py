"""Tests of docs/frameworks.md: the tests that it names exist, the lines that it quotes are there, and its classes are
those of the tests."""
import re

import pytest
from launching import ENVIRONMENT, HERE, ROOT, needs_frameworks

TEXT = (ROOT / "docs" / "frameworks.md").read_text()
QUOTES = re.findall(r"`([\w/]+\.py):(\d+)` `([^`]+)`", TEXT)


def packages():
    """Returns the folders of installed packages: of the frameworks, then of torch."""
    return [next(place.glob("lib/python*/site-packages")) for place in (ENVIRONMENT, ROOT / ".venv")]


@needs_frameworks
@pytest.mark.parametrize("path, line, words", QUOTES)
def test_quoted_lines_are_there(path, line, words):
    file = next(place / path for place in packages() if (place / path).exists())
    assert words in file.read_text().splitlines()[int(line) - 1]


def test_every_line_of_the_last_table_quotes_one():
    rows = re.findall(r"^\| (?:Accelerate|DeepSpeed|transformers|Lightning|torchft 0.2.0): .*", TEXT, re.MULTILINE)
    assert rows and not [row for row in rows if not re.search(r"`[\w/]+\.py:\d+` `", row)]


def test_named_tests_exist():
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT))
    assert named
    for file, name in named:
        assert f"def {name}(" in (HERE / file).read_text(), f"{file} has no {name}"


def test_classes_for_torchft_are_those_of_the_tests():
    program = (HERE / "programs" / "torchft_on_tutti.py").read_text()
    assert program.partition('"""\n')[2].strip() in TEXT
