"""`everbell keys` against a scripted server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everbell.cli.main import main
from tests.unit.client.scripted import Answer, ScriptedServer

KEY: dict[str, Any] = {
    "id": "n4wy6ylcmfrgg33",
    "tenant": "shop",
    "scopes": ["read", "schedule"],
    "created_at": "2026-11-20T10:00:00.000Z",
    "note": "orders\x1b[2J",
}
NEW = KEY | {"key": "evk_n4wy6ylcmfrgg33_secret"}


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("EVERBELL_SERVER", "EVERBELL_TENANT", "EVERBELL_TOKEN", "EVERBELL_CA", "EVERBELL_CERT"):
        monkeypatch.delenv(name, raising=False)

    def run(command: str, *script: Any) -> tuple[int, str, str, Any]:
        with ScriptedServer(*script) as server:
            code = main([*command.split(), "--server", server.url])
        printed = capsys.readouterr()
        return code, printed.out, printed.err, server.asked

    return run


def test_a_new_key_is_printed_and_nothing_else(play: Any) -> None:
    code, out, err, (asked,) = play("keys create --tenant shop --note orders", Answer(201, NEW))
    assert (code, out, err) == (0, NEW["key"] + "\n", "")
    assert (asked.method, asked.target) == ("POST", "/v1/keys")
    assert asked.json == {"tenant": "shop", "scopes": ["schedule", "read"], "note": "orders"}


def test_an_operator_s_key(play: Any) -> None:
    code, out, _, (asked,) = play("keys create --all-tenants --scope admin --json", Answer(201, NEW))
    assert code == 0
    assert json.loads(out)["key"] == NEW["key"]
    assert asked.json == {"tenant": "*", "scopes": ["admin"], "note": ""}


def test_the_list_shows_tenants_and_scopes(play: Any) -> None:
    revoked = KEY | {"id": "older", "revoked_at": "2026-11-21T10:00:00.000Z", "note": ""}
    code, out, _, _ = play("keys list", Answer(200, {"keys": [revoked, KEY]}))
    assert code == 0
    heading, first, second = out.splitlines()
    assert heading.split() == ["ID", "TENANT", "SCOPES", "CREATED", "REVOKED", "NOTE"]
    assert first.split()[0] == "older"
    assert "2026-11-21 10:00" in first
    assert "read,schedule" in second
    assert "\x1b" not in second


def test_revoking_names_the_key(play: Any) -> None:
    code, out, _, (asked,) = play("keys revoke n4wy6ylcmfrgg33", Answer(200, KEY))
    assert (code, out) == (0, "revoked n4wy6ylcmfrgg33\n")
    assert (asked.method, asked.target) == ("DELETE", "/v1/keys/n4wy6ylcmfrgg33")


@pytest.mark.parametrize("command", ["keys", "keys fly", "keys revoke", "keys list x", "keys create x"])
def test_contradicting_arguments_are_a_usage_error(command: str, play: Any) -> None:
    code, out, err, asked = play(command)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert not asked
