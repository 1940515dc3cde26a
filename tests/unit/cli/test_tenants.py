"""`everbell tenants`: requests, output and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everbell.cli.main import main
from tests.unit.client.scripted import Answer, ScriptedServer

SEEN = {
    "name": "shop",
    "version": 17,
    "policy": {"timeout": "5s", "secrets": ["whsec_…abcd"]},
    "sources": {"timeout": "document", "secrets": "settings"},
    "pauses": [{"what": "queue", "name": "mail", "since": "2026-11-20T10:00:00.000Z", "by": "nobody"}],
}


def play(capsys: pytest.CaptureFixture[str], *command: str, answers: tuple[Any, ...] = ()) -> tuple[int, str, Any]:
    with ScriptedServer(*answers) as server:
        code = main(["tenants", *command, "--server", server.url])
    return code, "".join(capsys.readouterr()), server.asked


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"name": "shop", "version": 17, "pending": 3, "dead": 1, "pauses": 2}
    code, out, asked = play(capsys, answers=(Answer(200, {"tenants": [line]}),))
    assert (code, asked[0].target) == (0, "/v1/tenants")
    assert out.split() == ["TENANT", "VERSION", "PENDING", "DEAD", "PAUSED", "shop", "17", "3", "1", "2"]


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, asked = play(capsys, "show", "shop", answers=(Answer(200, SEEN),))
    assert (code, asked[0].method, asked[0].target) == (0, "GET", "/v1/tenants/shop")
    assert "shop, version 17" in out
    assert "whsec_…abcd" in out
    assert "paused: queue mail" in out


@pytest.mark.parametrize("text", ['timeout = "5s"\n[limits]\nrate = 5\n', '{"timeout": "5s", "limits": {"rate": 5}}'])
def test_set_reads_both_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    file = tmp_path / "policy"
    file.write_text(text)
    code, _, asked = play(capsys, "set", "shop", str(file), "--version", "16", answers=(Answer(200, SEEN),))
    assert (code, asked[0].method, asked[0].headers["if-match"]) == (0, "PUT", '"16"')
    assert asked[0].json == {"timeout": "5s", "limits": {"rate": 5}}


def test_delete(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, asked = play(capsys, "delete", "shop", answers=(Answer(200, {**SEEN, "version": 0}),))
    assert (code, asked[0].method) == (0, "DELETE")
    assert "by the server's settings" in out


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("set", "shop"), "set needs NAME and FILE"),
        (("show", "shop", "file"), "show takes no FILE"),
        (("list", "shop"), "list takes no NAME"),
        (("set", "shop", "/nowhere/at/all"), "cannot be read"),
    ],
)
def test_misuse(capsys: pytest.CaptureFixture[str], command: tuple[str, ...], complaint: str) -> None:
    code, out, asked = play(capsys, *command)
    assert (code, asked) == (2, [])
    assert complaint in out
