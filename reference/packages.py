"""The package graph: which packages of `everbell` import which, read from the source without running it.

A folder below `everbell` is a package, and a module beside the folders counts as one. An import for type checking only
is an import too, because a reader follows it like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from reference.markdown import code, table

SRC = Path(__file__).parents[1] / "src"
ROOT_PACKAGE = "everbell"
_BEGIN = "<!-- The package graph, written by `make reference`; edits between the two markers are lost. -->"
_END = "<!-- End of the package graph. -->"
# The public surface and the entry point import from all over the tree, and no package imports them.
_WITHOUT_NEWS = ("__init__", "__main__")

Graph = Mapping[str, frozenset[str]]
"""Each package with the packages that it imports."""


def architecture_page(path: Path) -> str:
    """The page as it is, with the graph as it should be."""
    head, _, rest = path.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n\n{graph_table(package_graph())}\n\n{_END}{tail}"


def package_graph(source: Path = SRC) -> Graph:
    """Read every module below `source`."""
    below: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        own = package_of(_module_name(path, source))
        names = _imports(ast.parse(path.read_text(), str(path)))
        packages = {package_of(name) for name in names if name.startswith(f"{ROOT_PACKAGE}.")}
        below.setdefault(own, set()).update(packages - {own})
    return {package: frozenset(imported) for package, imported in below.items()}


def package_of(name: str) -> str:
    """The folder of a module below `everbell`, or the module itself where it stands beside the folders."""
    return ".".join(name.split(".")[:2])


def layers(graph: Graph) -> list[list[str]]:
    """The packages from the bottom up: each imports only packages of the layers before its own."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    found: list[list[str]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        found.append(ready)
        sorter.done(*ready)
    return found


def graph_table(graph: Graph) -> str:
    """One row for each package, from the top down, with its purpose and its nearest neighbours below."""
    shown = {name: below for name, below in graph.items() if name.rpartition(".")[2] not in _WITHOUT_NEWS}
    shown.pop(ROOT_PACKAGE, None)
    rows = [
        (code(_short(package)), _purpose(package), " ".join(map(_short, _nearest(package, graph))))
        for layer in reversed(layers(shown))
        for package in layer
    ]
    return table(("package", "purpose", "imports"), rows)


def _nearest(package: str, graph: Graph) -> list[str]:
    """The imported packages that no other imported package leads to: the others follow from these."""
    imported = graph[package]
    further: set[str] = set()
    for other in imported:
        further |= _reached(other, graph)
    return sorted(imported - further)


def _reached(package: str, graph: Graph) -> set[str]:
    """All packages below one, directly or by way of others."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        for below in graph.get(waiting.pop(), ()):
            if below not in found:
                found.add(below)
                waiting.append(below)
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _purpose(package: str) -> str:
    """The first sentence of its docstring."""
    path = SRC.joinpath(*package.split("."))
    module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".")


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _short(package: str) -> str:
    return package.removeprefix(f"{ROOT_PACKAGE}.")
