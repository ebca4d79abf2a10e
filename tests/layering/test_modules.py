"""Tests that no two modules below tests/ have one name. A test imports the modules of its folder by their bare names,
and one pytest process runs tests of all folders: of two modules with one name, it would load only the first."""
import sys
from collections import defaultdict
from pathlib import Path, PurePath

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_layering import tracked  # noqa: E402


def modules_of_one_name(names):
    """Returns the lists of files below tests/ that share a bare name, without the modules of packages."""
    packages = {PurePath(name).parent for name in names if name.endswith("/__init__.py")}
    files = defaultdict(list)
    for path in map(PurePath, names):
        is_module = path.parts[0] == "tests" and path.suffix == ".py" and path.name != "conftest.py"
        if is_module and path.parent not in packages:
            files[path.stem].append(str(path))
    return [found for found in files.values() if len(found) > 1]


def test_no_two_modules_have_one_name():
    assert modules_of_one_name(tracked()) == []


def test_two_modules_of_one_name_are_found():
    same = ["tests/bench/words.py", "tests/layering/words.py"]
    assert modules_of_one_name([*same, "tests/bench/rows.py", "shim/words.py"]) == [same]
    assert modules_of_one_name(["tests/a/__init__.py", "tests/a/words.py", "tests/b/words.py"]) == []
