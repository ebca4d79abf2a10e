"""Tests of the types that a type checker and an editor see: the stub of the extension agrees with the extension, and
the Python part has annotations and docstrings."""
import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch  # noqa: F401  the extension needs it

import torch_tutti
from torch_tutti._extension import load

FOLDER = Path(torch_tutti.__file__).parent
# Attributes that every class bound by pybind11 has.
COMMON = {"__doc__", "__module__", "_pybind11_conduit_v1_", "__repr__"}
extension = load()


def read_stub():
    """Returns the classes and functions of the stub, by name."""
    tree = ast.parse((FOLDER / "_C.pyi").read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


STUB = read_stub()
BOUND = {name: value for name, value in vars(extension).items() if callable(value) and not name.startswith("__")}


def members(node):
    """Returns the fields and methods of a class in the stub by name, the last definition of each."""
    fields = {item.target.id: item for item in node.body if isinstance(item, ast.AnnAssign)}
    return fields | {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}


def parameters(function):
    """Returns two lists of (name, default or None): of parameters that may be positional, and of those that must be
    named."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [ast.unparse(d) for d in given.defaults]
    keyword = [(a.arg, d and ast.unparse(d)) for a, d in zip(given.kwonlyargs, given.kw_defaults)]
    pairs = [(a.arg, d) for a, d in zip(positional, defaults) if a.arg not in ("self", "arg0")]
    return pairs, keyword


def signature(bound):
    """Returns the signature that pybind11 writes into the first line of the docstring, as a function without a body."""
    line = bound.__doc__.splitlines()[0]
    return ast.parse(f"def {line}: ...").body[0]


def agree(stub, bound):
    ours, theirs = parameters(stub), parameters(signature(bound))
    for mine, its in zip(ours, theirs):
        assert [name for name, _ in mine] == [name for name, _ in its]
        assert all(a == b or a == "..." for (_, a), (_, b) in zip(mine, its)), (mine, its)
    assert ast.unparse(stub.returns).split(".")[-1] == ast.unparse(signature(bound).returns).split(".")[-1]


def test_stub_has_what_is_bound():
    assert set(STUB) == set(BOUND)


@pytest.mark.parametrize("name", [n for n, node in STUB.items() if isinstance(node, ast.FunctionDef)])
def test_signature_in_the_stub_is_that_of_the_function(name):
    agree(STUB[name], getattr(extension, name))


@pytest.mark.parametrize("name", [n for n, node in STUB.items() if isinstance(node, ast.ClassDef)])
def test_members_in_the_stub_are_those_of_the_class(name):
    node, bound = STUB[name], getattr(extension, name)
    assert set(members(node)) == set(vars(bound)) - COMMON
    assert [ast.unparse(base).split(".")[-2:] for base in node.bases] == [
        base.__qualname__.split(".")[-2:] for base in bound.__bases__ if base.__module__.startswith("torch")]
    for member, item in members(node).items():
        if isinstance(item, ast.FunctionDef) and not isinstance(vars(bound)[member], property) and member != "__exit__":
            agree(item, vars(bound)[member])
    assert ast.get_docstring(node) and len(bound.__doc__) > 20


def public():
    """Returns {name: module} of the names that a type checker sees in the package."""
    tree = ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {alias.name: node.module for node in checked.body for alias in node.names}


def test_every_public_name_is_declared_where_it_lives():
    assert public() == {**torch_tutti._MODULE_OF, **{part: "torch_tutti" for part in torch_tutti._SUBMODULES}}
    assert set(torch_tutti.__all__) == set(public())
    for name, home in public().items():
        assert getattr(torch_tutti, name) is getattr(import_module(home), name)


@pytest.mark.parametrize("name", sorted(public()))
def test_public_name_has_types_and_a_docstring(name):
    value = getattr(torch_tutti, name)
    assert value.__doc__ and len(value.__doc__) > 20
    if inspect.isfunction(value):
        found = inspect.signature(value)
        missing = [p.name for p in found.parameters.values() if p.annotation is inspect.Parameter.empty]
        assert not missing and found.return_annotation is not inspect.Signature.empty


def test_types_are_installed():
    """The marker and the stub are installed with the package."""
    setup = (FOLDER.parents[1] / "setup.py")
    if not setup.exists():
        pytest.skip("not a checkout: the package is installed elsewhere")
    assert 'package_data={"torch_tutti": ["py.typed", "*.pyi"]}' in setup.read_text(encoding="utf-8")
    assert (FOLDER / "py.typed").exists()
