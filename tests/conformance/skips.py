"""Finds which of the decorators of a test skips it, and its line, by applying each to a function that does nothing.

torch reports why it skips a test, but not the line. For a skip that is decided while a test runs it reports only an
exit code.
"""
from __future__ import annotations

import ast
import inspect


def skip_lines(module, cases) -> dict[str, list[tuple[int, str]]]:
    """Returns {test: [(line, reason)]} for the decorators that skip tests of class `cases`, outermost first."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and hasattr(cases, node.name):
            skips = [(item.lineno, reason) for item in node.decorator_list if (reason := skip_reason(item, module))]
            if skips:
                found[node.name] = skips
    return found


def skip_reason(decorator: ast.expr, module) -> str | None:
    text = ast.unparse(decorator)
    if not ("skip" in text or text.startswith("require")):
        return None

    def nothing(_self):
        pass

    decorated = eval(compile(ast.Expression(decorator), module.__file__, "eval"), vars(module))(nothing)
    if getattr(decorated, "__unittest_skip__", False):
        return decorated.__unittest_skip_why__
    try:
        decorated(None)
    except SystemExit as error:
        return next(skip.message for skip in module.TEST_SKIPS.values() if skip.exit_code == error.code)
    return None
