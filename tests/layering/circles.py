"""Finds circles: files or folders that need each other, so that each can be read, tested or moved only with the
others."""
import re
import subprocess
from pathlib import Path, PurePosixPath


def components(graph):
    """Returns the strongly connected components with more than one node (Tarjan), each sorted. graph: {node: nodes that
    it needs}."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for after in graph.get(node, ()):
            if after not in order:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], order[after])
        if low[node] == order[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return sorted(one for one in found if len(one) > 1)


def folder_of(path):
    return str(PurePosixPath(path).parent)


def circles_of_folders(files):
    """Returns the circles of folders whose files include each other. files: {path: text}."""
    graph = {}
    for path, text in files.items():
        for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
            if folder_of(included) != folder_of(path):
                graph.setdefault(folder_of(path), set()).add(folder_of(included))
    return components(graph)


def objects_below(build):
    """Returns {source: object file} of the library in a build folder, which must have been built without link-time
    optimisation: nm lists no symbols of its objects."""
    return {str(path).split(".dir/", 1)[1].removesuffix(".o"): path
            for path in sorted(Path(build).glob("CMakeFiles/floor_*.dir/**/*.o"))}


def circles_of_objects(objects):
    """Returns the circles of sources that need each other's symbols. objects: {source: object file}."""
    defined, needed = {}, {}
    for source, path in objects.items():
        listed = subprocess.run(["nm", "-P", "-g", path], capture_output=True, text=True, check=True).stdout
        for name, kind, *_ in (line.split() for line in listed.splitlines()):
            if kind == "U":
                needed.setdefault(source, set()).add(name)
            else:
                defined[name] = source
    graph = {source: {defined[name] for name in names if name in defined and defined[name] != source}
             for source, names in needed.items()}
    return components(graph)
