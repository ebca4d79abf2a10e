"""Tests that docs/planning.md shows the output of its commands: a block of code with lines that begin with $ has the
commands and their output, in which a line with … stands for any lines. The last column of a table is a number that the
command before it prints.

    python tests/python/test_planning_page.py        writes the page and its pictures again
"""
import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from torch_tutti.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/planning.md"
BLOCK = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^(\|.*\| `(tutti plan [^`]*)` \| )([\d,]+)( \|)$", re.MULTILINE)
# The lines of a shortened output that stay.
SHOWN = re.compile(r"^ *tp  pp |^ +\d+ +\d+ +\d+ |^others:|^tutti: ")


def printed(command, picture=None):
    """Runs the command, and returns its output with its errors. picture: the path of its picture; None: it draws
    none."""
    words, out = shlex.split(command)[1:], io.StringIO()
    if "--picture" in words:
        at = words.index("--picture")
        words = words[:at] + (["--picture", str(picture)] if picture else []) + words[at + 2:]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        main(words)
    return out.getvalue().rstrip("\n")


def tokens_of(command):
    """Returns the tokens that a device handles in a second."""
    found = json.loads(printed(command + " --json"))
    return round(found["batch"] * found["sequence"] / found["strategies"][0]["seconds"] / found["cluster"]["devices"])


def cases(page):
    """Yields (command, lines of its output) for each command of a page."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, rest = part.partition("\n")
            yield command, rest.rstrip("\n")


def is_shown(lines, output):
    """Returns whether the lines are the output, except for those that … stands for."""
    pattern = "\n".join(".*" if line == "…" else re.escape(line) for line in lines.split("\n"))
    return re.fullmatch(pattern, output, re.DOTALL) is not None


TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command, lines", [pytest.param(*case, id=case[0]) for case in cases(TEXT)])
def test_page_shows_the_output_of_each_command(command, lines):
    assert is_shown(lines, printed(command)), f"run python tests/python/{Path(__file__).name}"


@pytest.mark.parametrize("command, figure", [(row[1], row[2]) for row in ROW.findall(TEXT)])
def test_numbers_of_tables_are_those_of_commands(command, figure):
    assert f"{tokens_of(command):,}" == figure


def test_pictures_are_drawn_by_commands(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    named = re.findall(r"--picture (docs/(img/\S+))", TEXT)
    assert named and set(re.findall(r"\]\((img/\S+)\)", TEXT)) == {name for _, name in named}
    assert all((ROOT / path).exists() for path, _ in named)
    command = next(command for command, _ in cases(TEXT) if "--picture" in command)
    printed(command, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_page_plans_all_models():
    shown = {command.split("--model ")[1].split()[0] for command, _ in cases(TEXT)}
    assert {"gpt3-175b", "llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama-70b", "mixtral-8x7b",
            "deepseek-v2"} <= shown


def test_lines_that_differ_from_the_output_are_found():
    assert is_shown("a\n…\nd", "a\nb\nc\nd") and not is_shown("a\n…\nd", "a\nb\nc") and not is_shown("a", "a\nb")


# ---- writing ----
def shortened(output):
    """Returns the output with … in place of all lines that are not of its table."""
    kept = []
    for line in output.split("\n"):
        if SHOWN.search(line):
            kept.append(line)
        elif not kept or kept[-1] != "…":
            kept.append("…")
    return "\n".join(kept)


def written(block):
    found = []
    for part in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]:
        command, _, rest = part.partition("\n")
        path = re.search(r"--picture (\S+)", command)
        output = printed(command, ROOT / path[1] if path else None)
        found.append(f"$ {command}\n{shortened(output) if '…' in rest else output}\n")
    return "```\n" + "".join(found) + "```"


if __name__ == "__main__":
    page = BLOCK.sub(written, TEXT)
    page = ROW.sub(lambda row: f"{row[1]}{tokens_of(row[2]):,}{row[4]}", page)
    PAGE.write_text(page, encoding="utf-8")
