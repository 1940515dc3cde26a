"""The files of the operations page: their policy, their caching, and that they load nothing from elsewhere."""

from __future__ import annotations

import re
from gzip import decompress
from pathlib import Path

import pytest

from everbell.api import page
from everbell.api.page import page_files
from tests.unit.api.keys_stage import KeysStage, guarded

UI = Path(page.__file__).parent / "ui"
MODULES = sorted(UI.glob("*.js"))
LINES_MAX = 400
BYTES_MAX = 200_000


def test_the_page_and_its_files_are_served_without_a_key() -> None:
    async def test(stage: KeysStage) -> None:
        await stage.key("*", ["admin"])
        front = await stage.call("GET", "/")
        assert (front.status, front.content_type) == (200, "text/html; charset=utf-8")
        for address in re.findall(r'(?:src|href)="(/ui/[^"]+)"', front.body.decode()):
            assert (await stage.call("GET", address)).status == 200, address
        assert (await stage.call("GET", "/ui/nothing.js")).status == 404
        assert (await stage.call("GET", "/ui/..%2Fpage.py")).status == 404

    guarded(test)


def test_the_policy_of_the_page_allows_only_its_own_files_and_no_markup_from_text() -> None:
    async def test(stage: KeysStage) -> None:
        for target in ("/", "/ui/app.js", "/ui/tokens.css"):
            policy = (await stage.call("GET", target)).headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy

    guarded(test)


def test_a_browser_gets_a_file_compressed_and_only_when_it_changed() -> None:
    async def test(stage: KeysStage) -> None:
        plain = await stage.call("GET", "/ui/app.js")
        packed = await stage.call("GET", "/ui/app.js", accept_encoding="gzip, br")
        assert packed.headers["content-encoding"] == "gzip"
        assert decompress(packed.body) == plain.body
        again = await stage.call("GET", "/ui/app.js", if_none_match=plain.headers["etag"])
        assert (again.status, again.body) == (304, b"")

    guarded(test)


def test_a_browser_learns_of_all_modules_at_once() -> None:
    index = (UI / "index.html").read_text()
    loaded = re.findall(r'(?:modulepreload" href|script type="module" src)="/ui/([^"]+)"', index)
    assert sorted(loaded) == [module.name for module in MODULES], "without it, a browser finds them one after the other"


def test_the_whole_page_is_small() -> None:
    assert sum(len(file.packed) for file in page_files().values()) < BYTES_MAX


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_a_module_of_the_page_has_one_purpose_and_loads_nothing_from_elsewhere(module: Path) -> None:
    text = module.read_text()
    assert text.startswith("/**"), f"{module.name} does not say what it is"
    assert text.count("\n") <= LINES_MAX, f"{module.name} has over {LINES_MAX} lines"
    for name in re.findall(r'from "([^"]+)"', text):
        assert re.fullmatch(r"\./[a-z_]+\.js", name), name
        assert name.removeprefix("./") in page_files()
    for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert banned not in text, f"{module.name}: text of users must never become markup, use dom.js"


def test_the_caller_learns_its_access() -> None:
    async def test(stage: KeysStage) -> None:
        seen = (await stage.call("GET", "/v1/whoami")).json
        assert (seen["id"], seen["tenant"], seen["keys_required"]) == ("nobody", "*", False)
        await stage.key("*", ["admin"])
        key = await stage.key("shop", ["read"])
        assert (await stage.call("GET", "/v1/whoami")).status == 401
        seen = (await stage.call("GET", "/v1/whoami", b"", key)).json
        assert (seen["tenant"], seen["scopes"], seen["keys_required"]) == ("shop", ["read"], True)

    guarded(test)


def test_the_audit_log_can_be_glanced_at() -> None:
    async def test(stage: KeysStage) -> None:
        await stage.call("PUT", "/v1/tenants/shop", {"retention": "7d"})
        answer = (await stage.call("GET", "/v1/audit")).json
        assert answer["extent"] == "changes"
        assert (answer["lines"][0]["operation"], answer["lines"][0]["tenant"]) == ("put_tenant", "shop")

    guarded(test, audit="changes")
