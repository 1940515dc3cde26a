"""An event as JSON, from what a Python program has at hand: aware datetimes, timedeltas, dataclasses, bytes.

Only what could change its meaning on the way is checked here. Everything else is for the server to judge, so that
there is one judge, and an older client does not refuse what a newer server takes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import UNSET, Raw
from msgspec import json as msgspec_json

from everbell.core.repeat_spec import RepeatSpec
from everbell.core.spec import RetrySpec
from everbell.errors import InvalidInput

Instant = datetime | str
Duration = timedelta | str | int | float
Retrying = RetrySpec | Mapping[str, Any]
Repeating = RepeatSpec | Mapping[str, Any]

BYTES_TYPE = "application/octet-stream"

_MILLISECOND = timedelta(milliseconds=1)
_NAMES = {"in_": "in"}
"""Arguments that are spelled differently in JSON."""


def encode_event(fields: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """The JSON of an event from the arguments of `schedule`, without some that are not part of it; None is left out."""
    return _encode({name: value for name, value in fields.items() if name == "payload" or value is not None}, without)


def encode_change(fields: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """The JSON of a change; what is UNSET is left out, and None takes a part away."""
    return _encode({name: value for name, value in fields.items() if value is not UNSET}, without)


def _encode(fields: Mapping[str, Any], without: Collection[str]) -> bytes:
    body = {_NAMES.get(name, name): value for name, value in fields.items() if name not in without}
    if "at" in body:
        body["at"] = instant_text(body["at"], "at")
    for name in ("in", "expires"):
        if isinstance(body.get(name), timedelta):
            body[name] = duration_text(body[name])
    if "payload" in body:
        _put_payload(body)
    return encode_json(body)


def instant_text(at: Instant, field: str) -> str:
    """A time as RFC 3339. A datetime without a time zone is refused: it does not say which moment it means."""
    if not isinstance(at, datetime):
        return at
    if at.utcoffset() is None:
        raise InvalidInput(
            f"{at.isoformat()} has no time zone, so it names no moment; "
            "use datetime.now(UTC), or at.replace(tzinfo=ZoneInfo('Europe/Berlin'))",
            field,
        )
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def duration_text(duration: timedelta) -> str:
    """A duration in milliseconds; a fraction is rounded up, since nothing may ring early."""
    return f"{-(-duration // _MILLISECOND)}ms"


def _put_payload(body: dict[str, Any]) -> None:
    payload = body["payload"]
    if isinstance(payload, bytes | bytearray | memoryview):
        del body["payload"]
        body["payload_base64"] = b64encode(payload).decode()
        body.setdefault("content_type", BYTES_TYPE)
    else:
        body["payload"] = Raw(encode_json(payload, "payload"))


def encode_json(value: Any, field: str | None = None) -> bytes:
    """The JSON of a value. Raises `InvalidInput` where there is none."""
    try:
        return msgspec_json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be written as JSON: {error}", field) from error
