"""Tests names and sentences against ceilings: wording.py must find exactly as many faults as the ceiling says. A commit
that removes faults lowers the ceiling, and no commit raises one. No circles of files or folders exist besides those
listed here."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import circles  # noqa: E402
import wording  # noqa: E402
from test_layering import ROOT, is_c, read, tracked  # noqa: E402

CODE = ("include/", "c_api/", "backend/", "kernels/", "zero/", "shim/", "examples/")
CEILINGS = {
    "names of private words": 0,
    "tags with two meanings": 0,
    "static functions of one word": 0,
    "comments beside the code": 108,
    "sentences of comments": 0,
    "sentences of literals": 0,
    "sentences of pages": 0,
    "sentences of docstrings": 0,
}
LEAST_WORDS_OF_A_NAME = 3.15
# backend/transports contains the table of its providers, which use its functions. kernels and kernels/cpu are alike.
PROVIDERS = [f"backend/transports/{name}" for name in ("fabric", "tcp", "ucx", "verbs")]
CIRCLES_OF_FOLDERS = [["backend/transports", *PROVIDERS], ["kernels", "kernels/cpu"]]
# {folder: number of files in its circle of objects, which need each other's functions}. Each circle is one protocol in
# several files: bind and fetch of execute, link and share of shm, endpoints, messages and worker of ucx.
CIRCLES_OF_OBJECTS = {"backend/execute": 2, "backend/transports/shm": 2, "backend/transports/ucx": 3}


@pytest.fixture(scope="module")
def code():
    return {name: read(name) for name in tracked() if is_c(name) and name.startswith(CODE)}


@pytest.fixture(scope="module")
def pages():
    return {name: read(name) for name in tracked() if name.endswith(".md")}


@pytest.fixture(scope="module")
def python():
    """Returns {path: text} of all Python files, also of those in script/ without a suffix."""
    texts = {name: read(name) for name in tracked() if name.endswith((".py", ".pyi")) or name.startswith("script/")}
    return {name: text for name, text in texts.items()
            if name.endswith((".py", ".pyi")) or text.startswith("#!/usr/bin/env python3")}


def docstring_hits(files):
    return wording.pattern_hits(files, wording.paragraphs_of_docstrings, wording.PATTERNS_OF_DOCSTRINGS)


MEASURES = {
    "names of private words": lambda code, pages, python: wording.private_words(code),
    "tags with two meanings": lambda code, pages, python: wording.homonyms(code),
    "static functions of one word": lambda code, pages, python: wording.one_word_statics(code),
    "comments beside the code": lambda code, pages, python: wording.trailing_comments(code),
    "sentences of comments": lambda code, pages, python: wording.pattern_hits(code, wording.sentences_of_comments),
    "sentences of literals": lambda code, pages, python: wording.pattern_hits(code, wording.sentences_of_literals),
    "sentences of pages": lambda code, pages, python: wording.pattern_hits(pages, wording.sentences_of_pages),
    "sentences of docstrings": lambda code, pages, python: docstring_hits(python),
}


@pytest.mark.parametrize("measure", CEILINGS)
def test_no_ceiling_is_exceeded(measure, code, pages, python):
    found = list(MEASURES[measure](code, pages, python))
    assert len(found) <= CEILINGS[measure], f"{len(found)} {measure}:\n" + "\n".join(found)
    assert len(found) == CEILINGS[measure], f"fewer {measure} than the ceiling: lower it to {len(found)}"


def test_names_have_enough_words(code):
    mean = wording.words_of_a_name(code)
    assert mean >= LEAST_WORDS_OF_A_NAME
    assert mean < LEAST_WORDS_OF_A_NAME + 0.01, f"raise LEAST_WORDS_OF_A_NAME to {int(mean * 100) / 100}"


# ---- circles ----
def test_folders_are_in_no_new_circle(code):
    assert circles.circles_of_folders(code) == CIRCLES_OF_FOLDERS


def test_objects_are_in_no_new_circle():
    builds = [ROOT / "build" / name for name in ("asan", "dev", "tsan")]
    objects = next((found for found in map(circles.objects_below, builds) if found), None)
    if not objects:
        pytest.skip("needs a build without link-time optimisation: run script/test asan")
    found = {}
    for circle in circles.circles_of_objects(objects):
        found.setdefault(circles.folder_of(circle[0]), []).append(len(circle))
    assert found == {folder: [count] for folder, count in CIRCLES_OF_OBJECTS.items()}


# ---- tests that each measure finds a fault ----
@pytest.mark.parametrize("find, text", [
    (wording.private_words, "int flight_land(int a) { return a; }"),
    (wording.one_word_statics, "static int keep(int a) { return a; }"),
    (wording.trailing_comments, "int a; /* of the other */"),
    (lambda files: wording.pattern_hits(files, wording.sentences_of_comments), "/* Who waits is told. */"),
    (lambda files: wording.pattern_hits(files, wording.sentences_of_literals), 'f("the reply cannot be had");'),
    (lambda files: wording.pattern_hits(files, wording.sentences_of_pages), "Who waits is told."),
])
def test_each_measure_finds_its_fault(find, text):
    assert list(find({"a": text}))
    assert not list(find({"a": "/* The sender waits. */\nint message_send(int a)\n{\n    return a;\n}\n"}))


@pytest.mark.parametrize("text", ['"""What a rank knows."""', 'class A:\n    """Of one rank."""',
                                  'def f():\n    """Sums. Who waits is told."""', '"""A sum.\n\n    Those of it."""'])
def test_a_docstring_without_a_verb_or_a_noun_is_found(text):
    assert list(docstring_hits({"a": text}))
    assert not list(docstring_hits({"a": 'def f():\n    """Returns what is left. Where none is, waits."""'}))


def test_a_tag_with_two_meanings_is_found():
    assert list(wording.homonyms({"a": "struct link { int a; };", "b": "struct link { int b; };"}))
    assert not list(wording.homonyms({"a": "struct link { int a; };", "b": "struct port { struct link *b; };"}))


def test_a_circle_is_found():
    assert circles.components({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles.components({"a": {"b"}, "b": {"c"}}) == []
