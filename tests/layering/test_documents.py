"""Tests of the documents: every path that they name exists, each folder of backend/ opens with a page that names its
files, and each measured decision is in the index. The rules find faults in a text; a test of the tests breaks each of
them."""
import functools
import re
from pathlib import Path

import pytest
from test_layering import ROOT, read, tracked

LONGEST_PAGE = 40
FLOORS = ROOT / "backend"
DECISIONS = ROOT / "docs/decisions"
# where a path begins that a sentence names without linking to it
ROOTS = r"(?:include|backend|c_api|kernels|shim|tests|docs|script|examples|\.ci)"


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The names under which GitHub links to headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ +(.*?) *$", without_code(text), re.MULTILINE)}


# ---- the rules; each yields what it finds wrong ----
def link_broken(name, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists():
            yield f"{name} links to {target}, which does not exist"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8") if path else text):
            yield f"{name} links to {target}, which has no such heading"


def path_gone(name, text):
    """Paths from the root of the repository, as sentences and tables name them."""
    for path in re.findall(rf"(?<![\w./<*-]){ROOTS}/[\w./-]*\w", without_code(text)):
        found = ROOT / path
        if not found.exists() and not list(found.parent.glob(found.name + ".*")) and not path.startswith("docs/img"):
            yield f"{name} names {path}, which does not exist"


def page_of_floor_wrong(name, text):
    if len(text.splitlines()) > LONGEST_PAGE:
        yield f"{name} has {len(text.splitlines())} lines, at most {LONGEST_PAGE} open a folder"
    for file in (ROOT / name).parent.glob("*.[ch]"):
        if not re.search(rf"`{file.stem}(?:\.[ch])?`", text):
            yield f"{name} does not say what is in {file.name}"


def word_gone(name, text):
    """Functions, files and settings in backquotes: where the code no longer has the word, the sentence is old."""
    for word in set(re.findall(r"`([a-z]\w*_\w+|TUTTI_\w+)`", without_code(text))):
        if word not in words_of_code():
            yield f"{name} speaks of {word}, which is nowhere in the code"


@functools.cache
def words_of_code():
    files = [name for name in tracked() if re.search(r"\.([ch]|[ch]pp|py|cmake|sh)$|^script/", name)]
    return {word for name in files for word in re.findall(r"\w+", read(name) + " " + Path(name).stem)}


def command_gone(name, text):
    """A command that runs a test, in a document or a script, names a file of tests/unit."""
    for folder, test in re.findall(r"\bunit_(\w+)[\s\"',]+(test_\w+)", text):
        if not (ROOT / f"tests/unit/{folder}/{test}.c").exists():
            yield f"{name} runs unit_{folder} with {test}, which does not exist"


RULES = {
    "links": (link_broken, lambda name: name.endswith(".md")),
    "paths": (path_gone, lambda name: name.endswith(".md")),
    "words": (word_gone, lambda name: re.match(r"(backend|kernels|shim)/.*\.md", name)),
    "floors": (page_of_floor_wrong, lambda name: re.fullmatch(r"backend/.+/README\.md", name)),
    "commands": (command_gone, lambda name: name.endswith((".md", ".sh", ".py")) or name.startswith("script/")),
}


@pytest.mark.parametrize("rule", RULES)
def test_documents_keep(rule):
    finds, concerns = RULES[rule]
    names = [name for name in tracked() if concerns(name)]
    assert names, f"no document is concerned by the rule {rule}"
    wrong = [problem for name in names for problem in finds(name, read(name))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("rule, name, text", [
    ("links", "README.md", "see [this](docs/nowhere.md)"),
    ("links", "docs/torch.md", "see [this](backend/README.md)"),
    ("links", "README.md", "see [this](docs/performance.md#nowhere)"),
    ("links", "README.md", "# Use\n\nsee [this](#settings)"),
    ("paths", "docs/torch.md", "as backend/engine.c does"),
    ("paths", "kernels/README.md", "(`backend/host/arena.h`)"),
    ("words", "backend/engine/README.md", "`operation_" + "nowhere` starts it"),
    ("floors", "backend/base/README.md", "`status` only"),
    ("floors", "backend/base/README.md", "line\n" * (LONGEST_PAGE + 1)),
    ("commands", "script/test", "build/release/tests/unit_" + "transports test_nowhere"),
])
def test_breach_is_caught(rule, name, text):
    finds, concerns = RULES[rule]
    assert concerns(name) and list(finds(name, text))


def test_every_folder_of_the_backend_has_a_page():
    folders = {file.parent for file in FLOORS.rglob("*.[ch]")}
    assert FLOORS / "base" in folders
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").exists()]


def test_every_floor_is_in_the_picture():
    text = read("backend/README.md")
    assert len(text.splitlines()) <= 60
    for floor in [folder.name for folder in FLOORS.iterdir() if (folder / "README.md").exists()]:
        assert f"]({floor}/README.md)" in text and f"](../backend/{floor}/README.md)" in read("docs/README.md"), floor


def test_every_decision_is_in_the_index():
    pages = {page.name for page in DECISIONS.glob("*.md")} - {"README.md"}
    assert pages and not [page for page in pages if f"]({page})" not in read("docs/decisions/README.md")]
