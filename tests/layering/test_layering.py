"""Tests that the repository keeps its rules: which file may include which, where a header or a call may appear at all,
and how large files and functions may be. A rule is a function that yields the faults of a text; test_breach_is_caught
gives each rule a text with a fault."""
import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FILE, LONGEST_LINE, LONGEST_FUNCTION = 500, 120, 60

# The layers of backend/, from the lowest. A file may include files of its own layer and of those below; `below` limits
# some layers further.
LAYERS = ["base", "agree", "groups", "schedule", "check", "collectives", "model", "memory", "devices", "streams",
          "host", "processes", "links", "control", "transports", "window", "execute", "tuning", "engine", "join",
          "comm", "info"]


def below(layer):
    """Returns how paths begin that files of a layer may include, besides files of the layer itself."""
    only = {"agree": ["base"], "groups": ["base"], "schedule": ["base"], "check": ["base", "schedule"],
            "collectives": [], "memory": ["base"], "devices": ["base"], "model": ["base", "schedule"],
            "streams": ["base", "schedule", "devices"],
            "host": ["base", "memory"],
            "processes": ["base", "memory", "host"], "links": ["base", "processes"],
            "control": ["base", "memory", "host", "processes", "links"],
            "transports": ["base", "memory", "processes", "links"],
            "window": ["base", "memory", "host", "processes", "transports"],
            "execute": ["base", "schedule", "memory", "host", "transports"],
            "tuning": ["base", "schedule", "collectives", "model", "host"]}
    layers = only.get(layer, LAYERS[:LAYERS.index(layer)])
    return ["include/tutti.h", "kernels/", *(f"backend/{name}/" for name in layers)]


# {prefix of a path: prefixes of our files that it may include, besides files of its own prefix}. If a path begins with
# several prefixes, the longest counts.
MAY_INCLUDE = {
    "include/": ["tutti.h"],
    "include/tutti.h": [],
    "c_api/": ["include/tutti.h", "include/tutti_groups.h", "include/tutti_window.h", "backend/"],
    **{f"backend/{layer}/": below(layer) for layer in LAYERS},
    "backend/collectives/": ["backend/schedule/schedule.h"],
    "backend/groups/": [*below("groups"), "include/tutti_groups.h"],
    "kernels/": ["include/tutti.h"],
    "zero/": ["include/", "backend/base/", "kernels/"],
    "shim/": ["include/"],
    "examples/": ["include/tutti.h"],
    "tests/": ["include/", "c_api/", "backend/", "kernels/", "zero/"],
}
# Headers of other projects (a pattern), and the only places that may include them.
ONLY_FROM = {
    r"(torch|ATen|c10|pybind11)/|Python\.h|numpy/": ["shim/", "tests/device/", "tests/fake_cuda/torch/",
                                                       "tests/python/"],
    r"uc[pst]/": ["backend/transports/ucx/"],
    r"infiniband/|rdma/": ["backend/transports/verbs/", "tests/verbs/", "tests/unit/transports/"],
    r"cuda|nvml|nvtx": ["tests/unit/fake_cuda/", "kernels/cuda/"],
}
# Functions (a pattern), and the only files of the library that may call them.
CALLS_ONLY_IN = {
    r"(?:secure_)?getenv": ["backend/base/settings.c"],
    r"malloc|calloc|realloc|aligned_alloc|posix_memalign": ["backend/base/memory.c"],
    r"abort|exit|_exit|_Exit|quick_exit": [],
    r"signal|sigaction": [],
}
LIBRARY = ("include/", "c_api/", "backend/", "kernels/", "zero/")
# Arrays in a host's segment are indexed by local rank. Only the files of the access functions may index them directly.
INDEXED_ONLY_IN = {r"(?:->|\.)(?:controls|introductions|counts)\s*\[":
                   ["backend/host/segment.h", "backend/host/segment.c"]}
# A struct may have at most so many fields, except those in DATA_ROWS, which only hold data.
MOST_FIELDS = 25
DATA_ROWS = {"machine", "settings"}
# {prefix of a path: top-level modules that it may import, besides Python's own}
PYTHON_MAY_IMPORT = {"shim/torch_tutti/": {"torch", "torch_tutti", "numpy", "matplotlib"},
                     **{f"shim/torch_tutti/zero/{name}.py": {"torch", "torch_tutti", name}
                        for name in ("accelerate", "lightning", "transformers")},
                     "examples/": {"torch", "torch_tutti", "gpt_parallel"}}


# ---- reading ----
def tracked():
    """Returns the paths of all files of the repository, also of those not yet added to git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"not a git checkout, so there is no list of files: {listed.stderr.strip()}")
    return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def read(name):
    return (ROOT / name).read_text(encoding="utf-8", errors="strict")


def is_c(name):
    return name.endswith((".c", ".h", ".cpp", ".hpp", ".cu", ".cuh"))


def without_comments(text):
    """Returns the text with spaces in place of comments and literals. Line numbers do not change."""
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", blank, text, flags=re.DOTALL)


def without_directives(text):
    return re.sub(r"^[ \t]*#(?:.*\\\n)*.*", blank, text, flags=re.MULTILINE)


def blank(found):
    return re.sub(r"[^\n]", " ", found.group())


def line_of(found, text):
    return text.count("\n", 0, found.start()) + 1


def longest_prefix(name, prefixes):
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)


# ---- the rules; each yields the faults that it finds ----
def included_wrongly(name, text):
    prefix = longest_prefix(name, MAY_INCLUDE)
    for quoted, angled in re.findall(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', text, re.MULTILINE):
        if quoted and prefix and not quoted.startswith((prefix, *MAY_INCLUDE[prefix])):
            yield f"{name} may not include {quoted}"
        for header, places in ONLY_FROM.items():
            if re.match(header, quoted or angled) and not name.startswith(tuple(places)):
                yield f"{name} may not include {quoted or angled}: only {places}"


def included_from_elsewhere(name, text):
    for quoted in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
        # Installed headers include each other without a folder.
        installed = name.startswith("include/") and (ROOT / "include" / quoted).is_file()
        if not installed and not (ROOT / quoted).is_file():
            yield f'{name} includes "{quoted}", which is not a path from the root of the repository'


def called_wrongly(name, text):
    if not name.startswith(LIBRARY):
        return
    for call, places in CALLS_ONLY_IN.items():
        for found in re.finditer(rf"(?<![\w.>])({call})\s*\(", without_comments(text)):
            if name not in places:
                yield f"{name}:{line_of(found, text)} calls {found.group(1)}, allowed only in: {places or 'no file'}"


def opened_low(name, text):
    """Yields calls that open a descriptor without descriptor_move_above_stderr. If the program had closed its standard
    streams, such a descriptor would get one of their numbers."""
    opens = r"(?<![\w.>])(descriptor_move_above_stderr\(?)?(socket|accept4|eventfd|epoll_create1?|memfd_create)\s*\("
    for found in re.finditer(opens, without_comments(text)) if name.startswith(LIBRARY) else []:
        if not found.group(1):
            yield f"{name}:{line_of(found, text)} calls {found.group(2)} without descriptor_move_above_stderr"


def indexed_wrongly(name, text):
    if not name.startswith(LIBRARY):
        return
    for pattern, places in INDEXED_ONLY_IN.items():
        for found in re.finditer(pattern, without_comments(text)):
            if name not in places:
                yield f"{name}:{line_of(found, text)} has {found.group()}: use the functions of {places[0]}"


def structs_of(text):
    """Yields (name, line, number of fields) of each struct with a name. Fields of structs inside it count as its
    own."""
    clean = without_directives(without_comments(text))
    for found in re.finditer(r"\bstruct\s+(\w+)\s*\{", clean):
        depth, end = 1, found.end()
        while depth and end < len(clean):
            depth += {"{": 1, "}": -1}.get(clean[end], 0)
            end += 1
        body = re.sub(r"\([^()]*\)", "", re.sub(r"\[[^\]]*\]", "", clean[found.end():end - 1]))
        declared = [part for part in re.split(r"[;{}]", body) if part.strip()]
        yield found.group(1), line_of(found, clean), sum(part.count(",") + 1 for part in declared)


def struct_too_large(name, text):
    for struct, line, fields in structs_of(text) if name.startswith(LIBRARY) else []:
        if fields > MOST_FIELDS and struct not in DATA_ROWS:
            yield f"{name}:{line} struct {struct} has {fields} fields"


def imported_wrongly(name, text):
    prefix = longest_prefix(name, PYTHON_MAY_IMPORT)
    for node in ast.walk(ast.parse(text)) if prefix else []:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module]
        for module in modules:
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names and top not in PYTHON_MAY_IMPORT[prefix]:
                yield f"{name} may not import {module}"


def too_long(name, text):
    lines = text.splitlines()
    if len(lines) > LONGEST_FILE:
        yield f"{name} has {len(lines)} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            yield f"{name}:{number} has {len(line)} columns"


def kind_of_brace(head, inside):
    """Returns the kind of the brace after `head`: "function", "scope" if functions may be inside, or "other"."""
    if re.match(r"(?:\w+\s+)*(?:namespace|class|struct|extern)\b[^()]*$", head):
        return "scope"
    is_body = re.search(r"\)\s*(?:(?:const|noexcept|override|final)\s*)*(?::.*)?$", head, re.DOTALL)
    outermost = all(kind == "scope" for kind, _ in inside)
    return "function" if is_body and outermost and "=" not in head.split("(")[0] else "other"


def functions_of_c(text):
    """Yields (first line, number of lines) of each function's body, found by its braces."""
    clean = without_directives(without_comments(text))
    inside, head_begin = [], 0
    for found in re.finditer(r"[{};]", clean):
        at = found.start()
        if found.group() == "{":
            inside.append((kind_of_brace(clean[head_begin:at].strip(), inside), at))
        elif found.group() == "}" and inside:
            kind, begin = inside.pop()
            if kind == "function":
                yield clean.count("\n", 0, begin) + 1, clean.count("\n", begin, at) + 1
        head_begin = at + 1


def functions_of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def function_too_long(name, text):
    for line, lines in functions_of_python(text) if name.endswith(".py") else functions_of_c(text):
        if lines > LONGEST_FUNCTION:
            yield f"{name}:{line} begins a function of {lines} lines"


def repeated_comment(name, text):
    """Yields comments and docstrings of one line that the next line repeats."""
    for found in re.finditer(r'^([ \t]*(?:#|//|/\*|""")[^\n]{12,})\n\1$', text, re.MULTILINE):
        yield f"{name}:{line_of(found, text)} repeats a comment"


def without_opening(name, text):
    """Yields a file that does not begin with a comment or docstring about its content."""
    if text.strip() and not text.lstrip().startswith(("/*", "//", '"""', "#")):
        yield f"{name} does not begin with a comment that says what the file contains"


def machine_path(name, text):
    """Yields absolute paths that exist only on the machine of an author."""
    for found in re.finditer(r"(?<![\w.${}~-])/(?:home|root|work|Users|tmp|mnt)/[\w.-]+", text):
        yield f"{name}:{line_of(found, text)} names {found.group()}"


RULES = {
    "includes": (included_wrongly, is_c),
    "include_paths": (included_from_elsewhere, is_c),
    "calls": (called_wrongly, is_c),
    "descriptors": (opened_low, is_c),
    "indexing": (indexed_wrongly, is_c),
    "structs": (struct_too_large, is_c),
    "imports": (imported_wrongly, lambda name: name.endswith(".py")),
    "sizes": (too_long, lambda name: is_c(name) or name.endswith(".py") or name.startswith(("script/", ".ci/"))),
    "functions": (function_too_long, lambda name: is_c(name) or name.endswith(".py")),
    "repeats": (repeated_comment, lambda name: is_c(name) or name.endswith(".py") or name.startswith("script/")),
    "openings": (without_opening, lambda name: is_c(name) or name.endswith(".py")),
    "machine_paths": (machine_path, lambda name: not name.endswith((".png", ".whl", ".gz"))
                      and not name.startswith("tests/fuzz/corpus/")),
}


@pytest.mark.parametrize("rule", RULES)
def test_repository_keeps_rule(rule):
    finds, applies_to = RULES[rule]
    names = [name for name in tracked() if applies_to(name)]
    assert names, f"the rule {rule} applies to no file"
    wrong = [problem for name in names for problem in finds(name, read(name))]
    assert not wrong, "\n".join(wrong)


def test_every_c_file_has_an_include_rule():
    assert not [name for name in tracked() if is_c(name) and longest_prefix(name, MAY_INCLUDE) is None]


# ---- circles of modules that need each other, by includes and calls; a header and its .c file are one module ----
def modules():
    """Returns {path without suffix: text of header and .c file} of backend/ and kernels/."""
    found = {}
    for name in tracked():
        if name.startswith(("backend/", "kernels/")) and name.endswith((".c", ".h")):
            found[name[:-2]] = found.get(name[:-2], "") + "\n" + read(name)
    return found


def functions_defined(clean):
    """Returns (name, whether it is static) of each function that begins at the start of a line."""
    head = r"^(static\b)?[\w \t*]*?\b(\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*\{"
    return [(found.group(2), bool(found.group(1))) for found in re.finditer(head, clean, re.MULTILINE)]


def needs(texts):
    """Returns {module: modules that it needs}: those that it includes, and those whose functions it calls."""
    clean = {stem: without_directives(without_comments(text)) for stem, text in texts.items()}
    defined = {name: stem for stem, text in clean.items() for name, static in functions_defined(text) if not static}
    edges = {}
    for stem, text in texts.items():
        included = {path[:-2] for path in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)}
        own = {name for name, _ in functions_defined(clean[stem])}
        # Without declarations, which begin at the start of a line.
        bodies = "\n".join(re.findall(r"^[ \t].*|^.*\{.*\}$", clean[stem], re.MULTILINE))
        called = {defined.get(name) for name in set(re.findall(r"(?<![\w.>])(\w+)\s*\(", bodies)) - own}
        edges[stem] = ((included | called) & set(texts)) - {stem}
    return edges


def circles(edges):
    """Returns the sets of two or more modules that need each other (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(stem):
        order[stem] = low[stem] = len(order)
        stack.append(stem)
        for other in edges[stem]:
            if other not in order:
                visit(other)
            if other in stack:
                low[stem] = min(low[stem], low[other])
        if low[stem] == order[stem]:
            circle = set(stack[stack.index(stem):])
            del stack[stack.index(stem):]
            found.extend([circle] if len(circle) > 1 else [])

    for stem in edges:
        if stem not in order:
            visit(stem)
    return found


def folder_of(stem):
    return "kernels" if stem.startswith("kernels/") else stem.rsplit("/", 1)[0]


def upwards(edges):
    """Yields calls and includes of a module in a layer above."""
    for stem, others in edges.items():
        prefix = longest_prefix(stem + ".c", MAY_INCLUDE)
        folders = (prefix, *(entry.rsplit("/", 1)[0] + "/" for entry in MAY_INCLUDE[prefix]))
        yield from (f"{stem} needs {other}" for other in others if not other.startswith(folders))


def test_no_circle_crosses_folders():
    edges = needs(modules())
    assert sum(map(len, edges.values())) > 300, "too few includes and calls were found: needs() misreads the sources"
    crossing = [circle for circle in circles(edges) if len({folder_of(stem) for stem in circle}) > 1]
    assert not crossing, "\n".join(" <-> ".join(sorted(circle)) for circle in crossing)


def test_no_module_needs_a_layer_above():
    assert not list(upwards(needs(modules())))


def test_circle_and_call_upwards_are_found():
    texts = {"backend/base/a": "void a(void)\n{\n    b(1);\n}\n", "backend/host/b": "int b(int x)\n{\n    a();\n}\n",
             "backend/host/c": '#include "backend/base/a.h"\nstatic void b2(void) { }\n'}
    edges = needs(texts)
    assert circles(edges) == [{"backend/base/a", "backend/host/b"}]
    assert list(upwards(edges)) == ["backend/base/a needs backend/host/b"]


LONG_FUNCTION = "int f(int x)\n{\n" + "    x++;\n" * LONGEST_FUNCTION + "    return x;\n}\n"
LONG_METHOD = LONG_FUNCTION.replace(")", ") const", 1)
BREACHES = [
    ("includes", "backend/collectives/ring.c", '#include "backend/base/memory.h"\n'),
    ("includes", "backend/base/log.c", '#include "backend/comm/comm.h"\n'),
    ("includes", "backend/agree/agree.c", '#include "backend/host/segment.h"\n'),
    ("includes", "backend/host/wait.c", '#include "backend/schedule/schedule.h"\n'),
    ("includes", "kernels/reduce.c", '#include "backend/base/log.h"\n'),
    ("includes", "shim/work.cpp", '#include "backend/comm/comm.h"\n'),
    ("includes", "include/tutti.h", '#include "backend/comm/comm.h"\n'),
    ("includes", "backend/comm/comm.c", "#include <torch/torch.h>\n"),
    ("includes", "backend/transports/shm/shm.c", "  # include <infiniband/verbs.h>\n"),
    ("include_paths", "backend/comm/comm.c", '#include "comm.h"\n'),
    ("calls", "backend/comm/comm.c", "void f(void) { free(malloc(1)); }\n"),
    ("calls", "backend/base/memory.c", 'const char *f(void) { return getenv("A"); }\n'),
    ("calls", "kernels/reduce.c", "void f(void) { abort(); }\n"),
    ("descriptors", "backend/transports/tcp/tcp.c", "int f(void) { return epoll_create1(EPOLL_CLOEXEC); }\n"),
    ("indexing", "backend/engine/failure.c", "int f(void) { return s->controls[rank].core; }\n"),
    ("structs", "backend/engine/comm.h", "struct a {\n" + "    int x, y[2][3];\n" * 13 + "};\n"),
    ("imports", "shim/torch_tutti/bench.py", "def f():\n    import pandas.io\n"),
    ("imports", "examples/train_gpt.py", "from numpy import array\n"),
    ("sizes", "backend/comm/comm.c", "int x;\n" * (LONGEST_FILE + 1)),
    ("sizes", "backend/comm/comm.c", "/* " + "x" * LONGEST_LINE + " */\n"),
    ("functions", "backend/comm/comm.c", LONG_FUNCTION),
    ("functions", "shim/work.cpp", "namespace a {\nclass B : public C {\n" + LONG_METHOD + "};\n}\n"),
    ("functions", "tests/python/test_x.py", "def f():\n" + "    pass\n" * (LONGEST_FUNCTION + 1)),
    ("repeats", "script/setup", "# Makes the environment.\n" * 2),
    ("openings", "backend/comm/comm.c", '#include "backend/comm/comm.h"\n'.replace("#", "int x;\n#")),
    ("machine_paths", "README.md", "look into /" + "home/me/tutti\n"),
    ("machine_paths", "script/setup", "cd /" + "root/checkout\n"),
]


@pytest.mark.parametrize("rule, name, text", BREACHES)
def test_breach_is_caught(rule, name, text):
    finds, applies_to = RULES[rule]
    assert applies_to(name) and list(finds(name, text))


LONG_TABLES = "int table[] = {\n" + "    1,\n" * 200 + "};\nstruct a {\n" + "    int x;\n" * 200 + "};\n"
INNOCENT = [
    ("includes", "backend/collectives/a.c", '#include "backend/schedule/schedule.h"'),
    ("includes", "backend/collectives/a.c", '#include "backend/collectives/a.h"'),
    ("includes", "backend/comm/comm.c",
     '#include "backend/host/wait.h"\n#include "kernels/reduce.h"\n#include <stdio.h>'),
    ("calls", "backend/comm/comm.c", '/* malloc(1) */ void f(void) { log("abort()"); comm_abort(x); c->abort(x); }\n'),
    ("descriptors", "backend/host/socket.c",
     "int f(int l) { return descriptor_move_above_stderr(accept4(l, NULL, NULL, 0)); }\n"),
    ("functions", "backend/comm/comm.c", LONG_TABLES),
    ("structs", "backend/engine/comm.h", "struct a {\n" + "    int x, y[2];\n" * 12 + "    int z;\n};\n"),
    ("machine_paths", "script/setup", 'cat "$x/tmp/y" build/tmp/z https://example.org/home/page\n'),
]


@pytest.mark.parametrize("rule, name, text", INNOCENT)
def test_innocent_text_passes(rule, name, text):
    finds, _ = RULES[rule]
    assert not list(finds(name, text))
