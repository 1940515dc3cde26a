"""Lines of the log: no secrets, no forged lines, and still worth reading."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from everbell.core.access import new_key
from everbell.log_lines import GONE, JsonFormatter, SafeFormatter, redacted

KEY = new_key(bytes(range(36)), "shop", ["read"], 1_000)[1]
KEY_ID, KEY_SECRET = KEY.split("_")[1:]
WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PASSWORD = "hunter2-and-more"


def logged(message: str, *arguments: object, error: BaseException | None = None) -> str:
    """The line that the log shows for a message."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(SafeFormatter("%(levelname)s %(message)s"))
    info = None if error is None else (type(error), error, error.__traceback__)
    handler.handle(logging.LogRecord("test", logging.ERROR, __file__, 1, message, arguments, info))
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (KEY, KEY_SECRET),
        (f"/v1/keys/{KEY}?x", KEY_SECRET),
        (f"Authorization: Bearer {KEY}", KEY_SECRET),
        (f"{{'authorization': 'Bearer {PASSWORD}', 'host': 'x'}}", PASSWORD),
        (f"authorization=Basic {PASSWORD}", PASSWORD),
        (f'"Authorization": "{PASSWORD}"', PASSWORD),
        (f"proxy-authorization: basic {PASSWORD}", PASSWORD),
        (f"b'authorization: Bearer {PASSWORD}\\r\\n'", PASSWORD),
        (f"secrets=('{WEBHOOK}', 'whsec_c2Vjb25k')", "MfKQ9r8GKYqr"),
        (f"secrets=('{WEBHOOK}', 'whsec_c2Vjb25k')", "c2Vjb25k"),
        (f"postgresql://user:{PASSWORD}@db:5432/bell?x=1", PASSWORD),
        (f"cannot open 'postgresql://user:{PASSWORD}@db,db2/bell'", PASSWORD),
        ("postgresql://user:p@ss/w:ord@db/bell", "p@ss/w:ord"),
        (f"https://shop.example/hook?token={PASSWORD}&x=1", PASSWORD),
        (f"password={PASSWORD} host=db", PASSWORD),
        (f"cluster_secret: '{PASSWORD}'", PASSWORD),
        (f"API-Key: {PASSWORD}", PASSWORD),
    ],
)
def test_secrets_are_blacked_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)


def test_of_a_key_its_id_is_left() -> None:
    assert f"evk_{KEY_ID}_" in redacted(f"refused {KEY}")


@pytest.mark.parametrize(
    "text",
    [
        "ready on http://127.0.0.1:8420, events in rocksdb:./everbell-data",
        "ready on http://[::1]:8420, events in postgresql://db:5432/bell",
        "listening on 10.0.0.1:8420 and 10.0.0.2:8420; mail ops@example.com",
        '{"at":"2026-11-16T00:36:45.575Z","who":"xoot2vbncoal2iq","operation":"create_key","status":201}',
        "tokens of 3 leases were lost",
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("control", ["\n", "\r", "\x1b[31m", "\x00", "\x9b31m", "\u2028", "\t"])
def test_a_line_cannot_be_forged(control: str) -> None:
    line = logged("handler failed: path=%s", f"/a{control}CRITICAL all is lost")

    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert control.encode() not in line.removesuffix("\n").encode()
    assert "CRITICAL all is lost" in line


def test_tracebacks_are_looked_through_too() -> None:
    try:
        raise ValueError(f"cannot use {KEY}\nCRITICAL forged") from OSError(f"postgresql://u:{PASSWORD}@h/d")
    except ValueError as caught:
        text = logged("it failed", error=caught)

    assert KEY_SECRET not in text
    assert PASSWORD not in text
    first, *rest = text.splitlines()
    assert first == "ERROR it failed"
    assert all(line.startswith("  ") for line in rest), "none of them looks like an entry"
    assert any("ValueError" in line for line in rest)


def document(message: str, *arguments: object, error: BaseException | None = None, **extra: object) -> Any:
    """The one line that a log in JSON has of a message, read back."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("everbell.test", logging.WARNING, __file__, 1, message, arguments, info)
    record.created = 1_793_000_000.25
    record.__dict__.update(extra)
    line = JsonFormatter("gateway", "n1").format(record)
    assert "\n" not in line
    return json.loads(line)


def test_a_line_of_json_has_the_time_the_place_and_the_message() -> None:
    assert document("stored %d events\nin a row", 3) == {
        "time": "2026-10-26T07:33:20.250Z",
        "level": "warning",
        "logger": "everbell.test",
        "message": "stored 3 events\nin a row",
        "node": "n1",
        "process": "gateway",
    }


def test_extra_values_of_a_log_call_get_their_own_fields() -> None:
    line = document(
        "refused", tenant="shop", attempt=3, level="forged", audit={"who": "k1", "status": 201, "tags": ["a"]}
    )

    assert line["tenant"] == "shop"
    assert line["attempt"] == 3
    assert line["audit"] == {"who": "k1", "status": 201, "tags": ["a"]}
    assert line["level"] == "warning", "a field cannot take the place of another"


def test_a_line_of_json_has_no_secrets_anywhere() -> None:
    try:
        raise ValueError(f"cannot use {KEY}")
    except ValueError as caught:
        line = document(
            f"password={PASSWORD}",
            error=caught,
            url=f"postgresql://u:{PASSWORD}@h/d",
            cluster_secret=PASSWORD,
            headers={"Authorization": PASSWORD, "x": [WEBHOOK]},
        )

    text = json.dumps(line)
    assert not [secret for secret in (PASSWORD, KEY_SECRET, "MfKQ9r8GKYqr") if secret in text]
    assert line["cluster_secret"] == GONE
    assert "ValueError" in line["error"]
