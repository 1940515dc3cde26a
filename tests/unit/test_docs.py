"""The documentation keeps in step with the code: links lead somewhere, commands exist, settings are all there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from everbell.api.dead import DEAD
from everbell.api.events import EVENT, EVENTS
from everbell.api.queues import QUEUE
from everbell.cli.main import all_commands, parser_of
from everbell.core.policy import LimitsSpec, TenantSpec
from everbell.core.spec import EventSpec
from everbell.node.settings import SETTINGS
from reference.__main__ import PAGES as MADE
from reference.routes import document

ROOT = Path(__file__).parents[2]
COMMANDS = all_commands()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*.md")])
INTERNALS = ROOT / "docs/internals"

# The pages that name source files, below one of these folders.
FOR_CONTRIBUTORS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(INTERNALS.glob("*.md"))]
SOURCE_ROOTS = (ROOT, ROOT / "src", ROOT / "src/everbell")

# ARCHITECTURE.md is an overview: decisions and their measurements go to a page of docs/internals.
ARCHITECTURE_LINES_MAX = 300

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_SOURCE = re.compile(r"^(?:[\w.-]+/)+[\w-]+\.(?:py|sql|toml|json|md)$")
_COMMAND = re.compile(r"(?<![./\w-])(?<!from )everbell +([a-z][a-z-]*)([^|;#\n]*)")


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in _FENCE.findall(page.read_text()) if language in languages]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands_in(page: Path) -> list[tuple[str, list[str]]]:
    """Every `everbell COMMAND …` in the code of a page, with its options."""
    text = page.read_text()
    code = blocks(page, "", "console") + _CODE.findall(_FENCE.sub("", text))
    return [
        (name, re.findall(r"(?<=\s)--[a-z][a-z-]*", rest)) for part in code for name, rest in _COMMAND.findall(part)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_compiles(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path) -> None:
    for name, options in commands_in(page):
        if name == "help":
            continue  # It stands for the option --help of every command.
        assert name in COMMANDS, f"{page.name}: there is no command everbell {name}"
        parser = parser_of([COMMANDS[name]])[1].choices[name]
        unknown = [option for option in options if option not in parser.format_help()]
        assert not unknown, f"{page.name}: everbell {name} has no {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{page.name}: there is no {name} in {path}"


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    named = {path for code in _CODE.findall(_FENCE.sub("", page.read_text())) for path in _SOURCE.findall(code)}
    missing = [path for path in sorted(named) if not any((root / path).exists() for root in SOURCE_ROOTS)]
    assert not missing, f"{page.name} names {missing}: name the files that took their place"


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in text] == []


def test_every_argument_has_a_help_text() -> None:
    _, commands = parser_of(COMMANDS.values())
    actions = [(name, action) for name, parser in commands.choices.items() for action in parser._actions]
    assert [(name, action.dest) for name, action in actions if not action.help] == []


@pytest.mark.parametrize("name", MADE)
def test_a_page_that_is_made_from_the_code_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == MADE[name](), f"{name} is out of date: run make reference"


def test_the_reference_has_every_option_of_every_command() -> None:
    text = (ROOT / "docs/cli-reference.md").read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    shared = text.partition("## Options for the server")[2].partition("\n## ")[0]
    _, commands = parser_of(COMMANDS.values())
    missing = [
        f"{name} {option}"
        for name, parser in commands.choices.items()
        for action in parser._actions
        for option in action.option_strings
        if option not in ("-h", "--help") and f"`{option}" not in sections[name] + shared
    ]
    assert missing == []


def test_the_reference_has_every_route() -> None:
    text = (ROOT / "docs/http-reference.md").read_text()
    paths = document()["paths"]
    headings = [f"### {method.upper()} {path}\n" for path, methods in paths.items() for method in methods]
    assert [heading for heading in headings if heading not in text] == []


def test_the_table_has_every_setting() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    assert [setting.name for setting in SETTINGS if f"| `{setting.variable}` | `{setting.name}` |" not in text] == []


def test_every_field_of_a_tenant_is_documented() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    fields = [field.name for field in msgspec.structs.fields(TenantSpec) if field.name != "limits"]
    fields += [f"limits.{field.name}" for field in msgspec.structs.fields(LimitsSpec)]
    assert [name for name in fields if f"| `{name}` |" not in text] == []


def test_every_field_of_an_event_is_documented() -> None:
    text = (ROOT / "docs/concepts.md").read_text()
    names = [field.encode_name for field in msgspec.structs.fields(EventSpec)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_route_of_a_tenant_is_documented() -> None:
    text = (ROOT / "docs/http-api.md").read_text()
    paths = [EVENTS, f"{EVENTS}/batch", EVENT, f"{EVENT}/deliver", DEAD, f"{DEAD}/redrive", f"{QUEUE}/lease"]
    assert [path for path in paths if path not in text] == []


def test_the_readme_leads_to_every_page() -> None:
    more = (ROOT / "README.md").read_text().partition("\n## More\n")[2]
    # References are for looking things up: the pages about the listed items lead there.
    pages = {f"docs/{page.name}" for page in ROOT.glob("docs/*.md") if not page.stem.endswith("-reference")}
    assert pages - set(_LINK.findall(more)) == set()


def test_the_overview_stays_short() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().count("\n")
    assert lines <= ARCHITECTURE_LINES_MAX, f"ARCHITECTURE.md has {lines} lines: move details to docs/internals"


def test_the_overview_names_a_test_for_every_promise() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## The promises\n")[2].partition("\n## ")[0]
    promises = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)[1:]
    named = {int(number): "::test_" in rest for number, rest in zip(promises[::2], promises[1::2], strict=True)}
    assert named == dict.fromkeys(range(1, 12), True)


def test_the_list_of_internals_leads_to_every_page() -> None:
    links = set(_LINK.findall((INTERNALS / "README.md").read_text()))
    assert [page.name for page in sorted(INTERNALS.glob("*.md")) if page.name not in {*links, "README.md"}] == []


def test_the_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    assert [page for page in sorted(pages) if f": {page}\n" not in nav] == []


def test_every_program_is_a_recipe() -> None:
    text = (ROOT / "docs/recipes.md").read_text()
    assert [path.name for path in ROOT.glob("examples/*.py") if f"`{path.name}`" not in text] == []


def test_every_await_of_the_engine_has_a_rule() -> None:
    page = (INTERNALS / "awaits.md").read_text()
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    listed = {
        (module, name.rpartition(".")[2])
        for heading, section in sections
        for module in heading.split(", ")
        for name in _CODE.findall(section)
    }
    awaiting = {
        (path.name, function)
        for path in sorted((ROOT / "src/everbell/engine").glob("*.py"))
        for function in _awaiting(ast.parse(path.read_text()))
    }

    assert awaiting
    assert awaiting - listed == set()


def _awaiting(tree: ast.AST) -> set[str]:
    """The functions and methods with an await, in their own body or in a function inside them."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(isinstance(each, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for each in ast.walk(node)):
                found.add(node.name)
        else:
            found |= _awaiting(node)
    return found


def test_the_ledger_of_campaigns_adds_up() -> None:
    text = (INTERNALS / "campaigns.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| (20\d\d-|total)", line)]
    numbers = [[float(cell.partition(":")[0].replace(",", "")) for cell in row[-4:]] for row in rows]
    assert [round(sum(column), 1) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
