"""docs/planning.md shows what its commands print: each block of code whose lines begin with $ is the commands and their
output, where a line with … stands for any lines, and the last column of a table is a figure of the command before it.

    python tests/python/test_planning_page.py        writes the page, and its pictures, anew
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
SHOWN = re.compile(r"^ *tp  pp |^ +\d+ +\d+ +\d+ |^others:|^tutti: ")             # of what is shortened


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
    """A second, of a device."""
    found = json.loads(printed(command + " --json"))
    return round(found["batch"] * found["sequence"] / found["strategies"][0]["seconds"] / found["cluster"]["devices"])


def cases(page):
    """(command, the lines that stand behind it)"""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, rest = part.partition("\n")
            yield command, rest.rstrip("\n")


def is_shown(lines, output):
    """Whether the lines are the output, but for what … stands for."""
    pattern = "\n".join(".*" if line == "…" else re.escape(line) for line in lines.split("\n"))
    return re.fullmatch(pattern, output, re.DOTALL) is not None


TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command, lines", [pytest.param(*case, id=case[0]) for case in cases(TEXT)])
def test_what_a_command_prints(command, lines):
    assert is_shown(lines, printed(command)), f"run python tests/python/{Path(__file__).name}"


@pytest.mark.parametrize("command, figure", [(row[1], row[2]) for row in ROW.findall(TEXT)])
def test_figures_of_tables(command, figure):
    assert f"{tokens_of(command):,}" == figure


def test_pictures_are_the_commands(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    named = re.findall(r"--picture (docs/(img/\S+))", TEXT)
    assert named and set(re.findall(r"\]\((img/\S+)\)", TEXT)) == {name for _, name in named}
    assert all((ROOT / path).exists() for path, _ in named)
    command = next(command for command, _ in cases(TEXT) if "--picture" in command)
    printed(command, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_all_models_are_there():
    shown = {command.split("--model ")[1].split()[0] for command, _ in cases(TEXT)}
    assert {"gpt3-175b", "llama-7b", "llama-13b", "llama-33b", "llama-65b", "llama-70b", "mixtral-8x7b",
            "deepseek-v2"} <= shown


def test_breaches_are_found():
    assert is_shown("a\n…\nd", "a\nb\nc\nd") and not is_shown("a\n…\nd", "a\nb\nc") and not is_shown("a", "a\nb")


# ---- writing ----
def shortened(output):
    """The table alone."""
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
