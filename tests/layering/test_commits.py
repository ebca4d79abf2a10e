"""Tests of commit subjects: `area: verb …` in the imperative, at most 60 characters (CONTRIBUTING.md). Only commits
after the one that added this file are checked, because history is not rewritten."""
import re
import subprocess
from pathlib import Path

import pytest

from test_layering import ROOT

MOST = 60
SUBJECT = re.compile(r"[a-z0-9_./-]+(?:, [a-z0-9_./-]+)*: (?P<verb>[a-z][a-z-]*)(?: |$)")
# Imperatives that end in -ed, -ing or -s, as participles and third persons do.
IMPERATIVE = {"address", "bring", "discuss", "embed", "express", "feed", "focus", "guess", "pass", "press", "proceed",
              "process", "speed", "string", "suppress"}
# Words that may not stand in the place of the verb.
NO_VERB = {"a", "all", "an", "and", "at", "by", "each", "for", "from", "how", "in", "it", "its", "less", "more", "new",
           "no", "nobody", "not", "nothing", "of", "on", "one", "some", "that", "the", "these", "this", "to", "what",
           "when", "where", "which", "who", "why", "with"}


def fault_of(subject):
    """Returns the fault of a subject as text, or None."""
    if len(subject) > MOST:
        return f"{len(subject)} characters; at most {MOST}"
    found = SUBJECT.match(subject)
    if not found:
        return "not of the form `area: verb …` in lower case"
    verb = found["verb"]
    if verb in NO_VERB or (re.search(r"(?:ed|ing|s)$", verb) and verb not in IMPERATIVE):
        return f"'{verb}' is not a verb in the imperative"
    return "a full stop at the end" if subject.endswith(".") else None


def git(*arguments):
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return run.stdout.splitlines() if run.returncode == 0 else []


def test_subjects_are_imperative_and_short():
    this = Path(__file__).relative_to(ROOT)
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(this))
    if not added:
        pytest.skip("this checkout has no history of this file")
    subjects = git("log", "--no-merges", "--format=%s", f"{added[-1]}..HEAD")
    faults = [f"{subject}: {fault}" for subject in subjects if (fault := fault_of(subject))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("subject", [
    "tcp: bound unauthenticated connections",
    "docs, tests: add a glossary and measures of words",
    "c_api/names.c: pass the length of a name",
])
def test_a_good_subject_is_accepted(subject):
    assert fault_of(subject) is None


@pytest.mark.parametrize("subject", [
    "bound unauthenticated connections",
    "tcp: bounded unauthenticated connections",
    "tcp: bounds unauthenticated connections",
    "tcp: the connections of strangers",
    "tcp: Bound unauthenticated connections",
    "tcp: bound connections.",
    "tcp: bound unauthenticated connections in number, bytes and time",
])
def test_a_bad_subject_is_refused(subject):
    assert fault_of(subject)
