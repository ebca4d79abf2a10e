"""Tests of the documents: every path that they name exists, each folder of backend/ has a README that names its files,
and each decision is in the index. A rule is a function that yields the faults of a text; test_breach_is_caught gives
each rule a text with a fault."""
import functools
import re
from pathlib import Path

import pytest
from test_layering import ROOT, read, tracked

LONGEST_PAGE = 40
BACKEND = ROOT / "backend"
DECISIONS = ROOT / "docs/decisions"
# The first folder of a path that a sentence names without linking to it.
ROOTS = r"(?:include|backend|c_api|kernels|shim|tests|docs|script|examples|\.ci)"


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Returns the anchors that GitHub gives to the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ +(.*?) *$", without_code(text), re.MULTILINE)}


# ---- the rules; each yields the faults that it finds ----
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
    """Yields paths from the root of the repository that a sentence or table names and that do not exist."""
    for path in re.findall(rf"(?<![\w./<*-]){ROOTS}/[\w./-]*\w", without_code(text)):
        found = ROOT / path
        if not found.exists() and not list(found.parent.glob(found.name + ".*")) and not path.startswith("docs/img"):
            yield f"{name} names {path}, which does not exist"


def page_of_folder_wrong(name, text):
    if len(text.splitlines()) > LONGEST_PAGE:
        yield f"{name} has {len(text.splitlines())} lines, the README of a folder may have {LONGEST_PAGE}"
    for file in (ROOT / name).parent.glob("*.[ch]"):
        if not re.search(rf"`{file.stem}(?:\.[ch])?`", text):
            yield f"{name} does not say what is in {file.name}"


def word_gone(name, text):
    """Yields functions, files and settings in backquotes that no source file contains: the sentence is out of date."""
    for word in set(re.findall(r"`([a-z]\w*_\w+|TUTTI_\w+)`", without_code(text))):
        if word not in words_of_code():
            yield f"{name} names {word}, which no source file contains"


@functools.cache
def words_of_code():
    files = [name for name in tracked() if re.search(r"\.([ch]|[ch]pp|py|cmake|sh)$|^script/", name)]
    return {word for name in files for word in re.findall(r"\w+", read(name) + " " + Path(name).stem)}


def command_gone(name, text):
    """Yields commands of documents and scripts that run a unit test whose file does not exist."""
    for folder, test in re.findall(r"\bunit_(\w+)[\s\"',]+(test_\w+)", text):
        if not (ROOT / f"tests/unit/{folder}/{test}.c").exists():
            yield f"{name} runs unit_{folder} with {test}, which does not exist"


RULES = {
    "links": (link_broken, lambda name: name.endswith(".md")),
    "paths": (path_gone, lambda name: name.endswith(".md")),
    "words": (word_gone, lambda name: re.match(r"(backend|kernels|shim)/.*\.md", name)),
    "folder_pages": (page_of_folder_wrong, lambda name: re.fullmatch(r"backend/.+/README\.md", name)),
    "commands": (command_gone, lambda name: name.endswith((".md", ".sh", ".py")) or name.startswith("script/")),
}


@pytest.mark.parametrize("rule", RULES)
def test_documents_keep_rule(rule):
    finds, applies_to = RULES[rule]
    names = [name for name in tracked() if applies_to(name)]
    assert names, f"the rule {rule} applies to no document"
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
    ("folder_pages", "backend/base/README.md", "`status` only"),
    ("folder_pages", "backend/base/README.md", "line\n" * (LONGEST_PAGE + 1)),
    ("commands", "script/test", "build/release/tests/unit_" + "transports test_nowhere"),
])
def test_breach_is_caught(rule, name, text):
    finds, applies_to = RULES[rule]
    assert applies_to(name) and list(finds(name, text))


def test_every_folder_of_the_backend_has_a_readme():
    folders = {file.parent for file in BACKEND.rglob("*.[ch]")}
    assert BACKEND / "base" in folders
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").exists()]


def test_overviews_link_every_layer():
    text = read("backend/README.md")
    assert len(text.splitlines()) <= 60
    for layer in [folder.name for folder in BACKEND.iterdir() if (folder / "README.md").exists()]:
        assert f"]({layer}/README.md)" in text and f"](../backend/{layer}/README.md)" in read("docs/README.md"), layer


def test_every_decision_is_in_the_index():
    pages = {page.name for page in DECISIONS.glob("*.md")} - {"README.md"}
    assert pages and not [page for page in pages if f"]({page})" not in read("docs/decisions/README.md")]
