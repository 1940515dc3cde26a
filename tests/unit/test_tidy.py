"""The rules of style that no linter knows, as tests. Every message says what to do about it.

Only the public surface is imported; everything else is judged by its text, so that broken code is judged too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import pytest

import everbell

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SURFACE = Path(__file__).with_name("public_surface.txt")

LINES_MAX = 400
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

# The modules that may read clocks and make randomness, and so may use what pyproject.toml bans.
SOURCES_OF_CHANCE = {"everbell.clock", "everbell.entropy"}

# What the pure part may import, beside itself: nothing in here does I/O, reads a clock or makes randomness.
# zoneinfo reads the system's table of zones, which is a constant as far as the core is concerned.
PURE_PACKAGES = ("everbell.core", "everbell.errors", "msgspec")
PURE_MODULES = set(
    "__future__ abc base64 binascii bisect calendar collections collections.abc contextlib dataclasses "
    "datetime decimal enum fractions functools hashlib heapq hmac ipaddress itertools json math operator "
    "re string struct types typing urllib.parse zlib zoneinfo".split()
)
# What users of the library import, though nothing of ours does.
SHIPPED_FOR_USERS = "everbell.testing"


@dataclass(frozen=True)
class Module:
    """One source file, and what it refers to."""

    path: Path
    text: str

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def name(self) -> str:
        parts = self.path.relative_to(SRC).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_pure(self) -> bool:
        return is_within(self.name, "everbell.core") or self.name == "everbell.errors"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> dict[str, int]:
        """Every module that is imported anywhere in the file, with the line."""
        found: dict[str, int] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found[node.module] = node.lineno
        return found

    @cached_property
    def mentions(self) -> set[str]:
        """Everything that may name a module: imports, `from package import module`, and whole strings."""
        found = set(self.imports)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value.partition(":")[0])
        return found

    def references(self) -> Iterator[tuple[str, int]]:
        """What is imported and what is reached through that, by full name.

        In `import time as t; t.time()` these are `time` and `time.time`.
        """
        meaning: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for alias in node.names:
                    full = prefix + alias.name
                    yield full, node.lineno
                    # Plain `import a.b` binds `a`, every other form binds the whole.
                    is_plain = isinstance(node, ast.Import) and not alias.asname
                    bound = full.partition(".")[0] if is_plain else full
                    meaning[alias.asname or bound.rpartition(".")[2]] = bound
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                head, _, rest = ast.unparse(node).partition(".")
                if head in meaning:
                    yield f"{meaning[head]}.{rest}", node.lineno


MODULES = [Module(path, path.read_text()) for path in sorted(SRC.rglob("*.py"))]

each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


@each_module
def test_a_module_has_one_purpose_and_says_which(module: Module) -> None:
    lines = module.text.count("\n")
    assert lines <= LINES_MAX, (
        f"{module} has {lines} lines, over {LINES_MAX}: find the second noun and give it a module of its own"
    )
    assert ast.get_docstring(module.tree), f"{module} has no docstring: say what it is, its rules, and why it is so"


@each_module
def test_a_module_is_named_by_what_lives_in_it(module: Module) -> None:
    empty_words = NAMELESS.intersection(re.split(r"[._]", module.name))
    assert not empty_words, f"{module}: rename it, {empty_words} does not say what lives in there"


def test_the_core_is_pure() -> None:
    impure = [
        f"{module}:{line} imports {name}: pass in what it gives, or move this code out of core"
        for module in MODULES
        if module.is_pure
        for name, line in module.imports.items()
        if name not in PURE_MODULES and not any(is_within(name, package) for package in PURE_PACKAGES)
    ]
    assert not impure, "\n".join(impure)


def test_what_stands_behind_the_server_does_not_know_it() -> None:
    behind = ("cluster", "engine", "stores", "logs", "channels", "links")
    wrong = [
        f"{module}:{line} imports {name}: put what both need into a package of its own"
        for module in MODULES
        if any(is_within(module.name, f"everbell.{package}") for package in behind)
        for name, line in module.imports.items()
        if is_within(name, "everbell.server")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_two_modules_know_time_and_chance() -> None:
    banned = PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    leaks = [
        f"{module}:{line} uses {name}: {banned[api]['msg']}"
        for module in MODULES
        if module.name not in SOURCES_OF_CHANCE
        for name, line in module.references()
        for api in banned
        if is_within(name, api)
    ]
    assert not leaks, "\n".join(leaks)


def test_the_ban_sees_through_every_way_of_importing() -> None:
    ways = {
        "import time as t; t.time_ns()": "time.time_ns",
        "from time import time as now; now()": "time.time",
        "import datetime; datetime.datetime.now()": "datetime.datetime.now",
        "from datetime import datetime; datetime.now()": "datetime.datetime.now",
        "import os.path; os.urandom(8)": "os.urandom",
    }
    for text, name in ways.items():
        assert name in dict(Module(SRC / "example.py", text).references()), text


def test_no_work_is_left_as_a_note() -> None:
    note = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")  # in halves, so as not to find itself
    notes = [
        f"{path.relative_to(ROOT)}:{number}: do it now, or write an issue and delete the note: {line.strip()}"
        for folder in ("src", "tests", "benchmarks", "examples", "reference")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if note.search(line)
    ]
    assert not notes, "\n".join(notes)


def test_every_module_is_reached_from_an_entry_point() -> None:
    entries = {target.partition(":")[0] for target in PYPROJECT["project"]["scripts"].values()}
    roots = [
        module
        for module in MODULES
        if module.name in entries
        or module.name == "everbell"
        or module.path.stem == "__main__"
        or is_within(module.name, SHIPPED_FOR_USERS)
    ]
    reached = reachable(roots)
    dead = [
        f"{module} is used by nothing that runs: wire it in, or delete it with its tests"
        for module in MODULES
        if module not in reached and module.path.stem != "__init__"
    ]
    assert not dead, "\n".join(dead)


def test_the_public_surface_is_what_was_agreed() -> None:
    offered = sorted(getattr(everbell, "__all__", ()))
    agreed = SURFACE.read_text().split()
    assert offered == agreed, (
        f"everbell.__all__ changed (new: {set(offered) - set(agreed)}, gone: {set(agreed) - set(offered)}): "
        f"if users should see that, write it into {SURFACE.name} and into the changelog"
    )
    for name in offered:
        assert hasattr(everbell, name), f"everbell.__all__ offers {name}, which does not exist"


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is a package, module or attribute, or lies inside it."""
    return name == package or name.startswith(f"{package}.")


def reachable(roots: list[Module]) -> set[Module]:
    """The modules that the roots import, directly or by way of others; a module brings its packages along."""
    by_name = {module.name: module for module in MODULES}
    reached: set[Module] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            packages = accumulate(module.name.split("."), "{}.{}".format)
            waiting.extend(by_name[name] for name in {*module.mentions, *packages} & by_name.keys())
    return reached
