"""The rules of style that no linter knows, as tests. Every message says how to follow the rule.

Only the public surface is imported; everything else is judged by its text, so that broken code is judged too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError
from itertools import accumulate
from pathlib import Path

import pytest

import everbell
from reference.packages import layers, package_graph, package_of
from tests.unit import prose
from tests.unit.prose import Plainness

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SURFACE = Path(__file__).with_name("public_surface.txt")
# Pages that are made from the code have the language of the code, and the changelog is history.
WRITTEN_PAGES = [
    page
    for pattern in ("*.md", "docs/**/*.md", "deploy/*.md", "examples/*.md")
    for page in sorted(ROOT.glob(pattern))
    if page.name not in ("CHANGELOG.md", "cli-reference.md", "http-reference.md", "settings.md")
]

LINES_MAX = 400
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}

# The classes with the same name in two modules, each with the reason why that is one meaning.
SAME_MEANING = {
    "Command": "Django finds a command of manage.py by this name",
    "AttemptView": "the server writes it as JSON, the client reads that JSON",
    "EventView": "the server writes it as JSON, the client reads that JSON",
    "KeyView": "the server writes it as JSON, the client reads that JSON",
    "TenantLine": "the server writes it as JSON, the client reads that JSON",
}

# The modules that may read clocks and make randomness, and so may use the functions that pyproject.toml bans.
SOURCES_OF_CHANCE = {"everbell.clock", "everbell.entropy"}

# The modules that the pure part may import, beside itself: nothing in here does I/O, reads a clock or makes randomness.
# zoneinfo reads the system's table of zones, which is a constant as far as the core is concerned.
STORE_FOLDERS = tuple(f"everbell.stores.{name}." for name in ("memory", "rocksdb", "postgres", "cassandra"))
OPEN_STORE_MODULES = {"access", "address", "directory", "failures", "row_maker", "session", "store", "tables"}
"""How a store is opened, addressed and reached. The other modules of its folder know its keys and rows."""
PURE_PACKAGES = ("everbell.core", "everbell.errors", "msgspec")
PURE_MODULES = set(
    "__future__ abc base64 binascii bisect calendar collections collections.abc contextlib dataclasses "
    "datetime decimal enum fractions functools hashlib heapq hmac ipaddress itertools json math operator "
    "re string struct types typing typing_extensions urllib.parse zlib zoneinfo".split()
)

# Vague words (`tests/unit/prose.py`) per 1,000 words of prose. The projects that we take as examples, measured in
# the same way: starlette 0.0, mkdocs 0.3, APScheduler 0.4, dramatiq 0.4, kazoo 0.5, pytest 0.8, procrastinate 0.8,
# hypothesis 1.1, msgspec 1.7, trio 2.0, h11 2.3.
VAGUE_MAX = 2.3
# The bodies of prose that are not rewritten yet, each with its rate when this was measured, rounded up. Delete an entry
# when its body is rewritten, and add no new ones.
VAGUE_ALLOWED: dict[str, float] = {}

# The packages that users of the library import, though no module of ours does.
SHIPPED_FOR_USERS = ("everbell.contrib", "everbell.testing")


@dataclass(frozen=True)
class Module:
    """One source file, and the names that it refers to."""

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
        """The imported names and the names that are reached through them, in full.

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
def test_a_module_is_named_by_its_content(module: Module) -> None:
    empty_words = NAMELESS.intersection(re.split(r"[._]", module.name))
    assert not empty_words, f"{module}: rename it, {empty_words} does not say what lives in there"


def test_the_name_of_a_type_has_one_meaning() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for name, line in _types_in(module.tree):
            places[name].append(f"{module}:{line}")
    repeated = {name for name, found in places.items() if len(found) > 1}
    ambiguous = [
        f"{name} is defined in {' and '.join(places[name])}" for name in sorted(repeated - SAME_MEANING.keys())
    ]
    assert not ambiguous, "rename all but one type:\n" + "\n".join(ambiguous)
    assert sorted(SAME_MEANING.keys() - repeated) == [], "these names are not repeated any more: delete their entries"


def _types_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names of classes and of aliases of types (`Endpoint = tuple[str, int]`), with their lines.

    A call on the right makes a value or a type variable, which belongs to its module alone.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
    for node in tree.body:
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call):
            for target in node.targets:
                if isinstance(target, ast.Name) and re.fullmatch("[A-Z]+[a-z][A-Za-z]*", target.id):
                    yield target.id, node.lineno


def test_no_two_modules_differ_by_an_s() -> None:
    names = {module.name for module in MODULES}
    pairs = [f"{name} and {name}s: rename one by its own noun" for name in sorted(names) if f"{name}s" in names]
    assert not pairs, "\n".join(pairs)


def test_the_core_is_pure() -> None:
    impure = [
        f"{module}:{line} imports {name}: pass in what it gives, or move this code out of core"
        for module in MODULES
        if module.is_pure
        for name, line in module.imports.items()
        if name not in PURE_MODULES and not any(is_within(name, package) for package in PURE_PACKAGES)
    ]
    assert not impure, "\n".join(impure)


def test_the_package_graph_has_no_cycle() -> None:
    try:
        layers(package_graph(SRC))
    except CycleError as cycle:
        raise AssertionError(
            f"these packages import each other: {' -> '.join(cycle.args[1])}; move what both need below them"
        ) from None


def test_only_a_store_knows_its_keys_and_rows() -> None:
    leaks = [
        f"{module}:{line} imports {name}: use the store port, or a shared module of stores/"
        for module in MODULES
        for name, line in module.imports.items()
        if name.startswith(STORE_FOLDERS)
        and not is_within(module.name, name.rpartition(".")[0])
        and name.rpartition(".")[2] not in OPEN_STORE_MODULES
    ]
    assert not leaks, "\n".join(leaks)


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


def test_the_prose_is_plain() -> None:
    unclear = [
        f"{body} has {plainness.rate:.1f} vague words per 1,000, over {limit:.1f}: name the subject of each sentence "
        f"(the owner, the caller, the store) instead of {', '.join(prose.VAGUE[:4])}, …"
        for body, plainness in bodies_of_prose().items()
        if plainness.rate > (limit := VAGUE_ALLOWED.get(body, VAGUE_MAX))
    ]
    assert not unclear, "\n".join(unclear)


def test_the_allowance_for_vague_prose_names_existing_bodies() -> None:
    assert sorted(VAGUE_ALLOWED.keys() - bodies_of_prose().keys()) == []


def test_code_is_no_prose() -> None:
    source = '''"""Who calls `what()` gets an answer.

    who = what()

The rest is text.
"""

value = "whoever"  # Somebody reads this.
"""Nobody changes it."""
'''
    assert prose.of_text(prose.prose_of(source)) == Plainness(words=15, vague=3)


def test_the_engine_makes_its_timers_under_supervision() -> None:
    timer = re.compile(r"get_running_loop\(\)\.call_(soon|later|at)\b|\bloop\.call_(soon|later|at)\b")
    # The batches of a turn belong to the callers of the engine, and answer each of them by themselves.
    exempt = {"everbell.engine.supervisor", "everbell.engine.turn_batch"}
    found = [
        module.name
        for module in MODULES
        if is_within(module.name, "everbell.engine") and module.name not in exempt and timer.search(module.text)
    ]
    assert not found, f"an exception in these timers would be lost; use the supervisor: {found}"


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
        or any(is_within(module.name, package) for package in SHIPPED_FOR_USERS)
    ]
    reached = reachable(roots)
    dead = [
        f"{module} is used by nothing that runs: wire it in, or delete it with its tests"
        for module in MODULES
        if module not in reached and module.path.stem != "__init__"
    ]
    assert not dead, "\n".join(dead)


def test_the_public_surface_is_the_agreed_one() -> None:
    offered = sorted(getattr(everbell, "__all__", ()))
    agreed = SURFACE.read_text().split()
    assert offered == agreed, (
        f"everbell.__all__ changed (new: {set(offered) - set(agreed)}, gone: {set(agreed) - set(offered)}): "
        f"if users should see that, write it into {SURFACE.name} and into the changelog"
    )
    for name in offered:
        assert hasattr(everbell, name), f"everbell.__all__ offers {name}, which does not exist"


@cache
def bodies_of_prose() -> dict[str, Plainness]:
    """The prose of each package, of each folder of tests, of the other programs, and of the hand-written pages."""
    bodies: defaultdict[str, Plainness] = defaultdict(Plainness)
    for module in MODULES:
        package = package_of(module.name)
        is_folder = SRC.joinpath(*package.split(".")).is_dir()
        bodies[package if is_folder else "everbell"] += prose.of_module(module.path)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        bodies["/".join(path.relative_to(ROOT).parts[:-1][:2])] += prose.of_module(path)
    for folder in ("benchmarks", "examples", "reference"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            bodies[folder] += prose.of_module(path)
    for page in WRITTEN_PAGES:
        bodies["documents"] += prose.of_page(page)
    return dict(bodies)


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
