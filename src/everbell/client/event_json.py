"""An event as JSON, from Python values: aware datetimes, timedeltas, dataclasses, bytes.

Only values that could change their meaning on the way are checked here. The server checks everything else, so that the
rules are in one place, and an older client does not refuse an event that a newer server accepts.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from msgspec import UNSET, Raw, to_builtins
from msgspec import json as msgspec_json

from everbell.core.repeat_spec import RepeatSpec
from everbell.core.replication import ReplicasSpec
from everbell.core.spec import RetrySpec
from everbell.errors import InvalidInput

InstantLike = datetime | str
DurationLike = timedelta | str | int | float
Retrying = RetrySpec | Mapping[str, Any]
Repeating = RepeatSpec | Mapping[str, Any]
Replicating = ReplicasSpec | Mapping[str, Any]

BYTES_TYPE = "application/octet-stream"

_MILLISECOND = timedelta(milliseconds=1)
# Arguments that are spelled differently in JSON.
_NAMES = {"in_": "in"}


def encode_event(fields: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """The JSON of an event from the arguments of `schedule`, without some that are not part of it; None is left out."""
    return _encode({name: value for name, value in fields.items() if name == "payload" or value is not None}, without)


def encode_change(fields: Mapping[str, Any], without: Collection[str] = ()) -> bytes:
    """The JSON of a change; UNSET fields are left out, and None removes a field."""
    return _encode({name: value for name, value in fields.items() if value is not UNSET}, without)


def _encode(fields: Mapping[str, Any], without: Collection[str]) -> bytes:
    body = {_NAMES.get(name, name): value for name, value in fields.items() if name not in without}
    if "at" in body:
        body["at"] = instant_text(body["at"], "at")
    for name in ("in", "by", "expires"):
        if isinstance(body.get(name), timedelta):
            body[name] = duration_text(body[name])
    if "payload" in body:
        _put_payload(body)
    return encode_json(body)


def instant_text(at: InstantLike, field: str) -> str:
    """A time as RFC 3339. A datetime without a time zone is refused, because it names no instant."""
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
    """A duration in milliseconds; a fraction is rounded up, since no event may be early."""
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
        written = msgspec_json.encode(value, enc_hook=_encode_model)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be written as JSON: {error}", field) from error
    # The encoder writes null for numbers that JSON does not have. A look at the whole value is only needed then.
    if b"null" in written and (place := _no_number_in(value)) is not None:
        path = ".".join(part for part in (field, place) if part)
        raise InvalidInput("is not a number that JSON has: neither infinite nor NaN", path or None)
    return written


def _encode_model(value: Any) -> Any:
    """A pydantic model as values of JSON. Other types have no JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _checked_before(value: Any) -> Any:
    """JSON inside the value was checked when it was made."""
    return None if isinstance(value, Raw) else _encode_model(value)


def _no_number_in(value: Any) -> str | None:
    """The place of a number that is infinite or not a number, such as `lines.0.price`; None if there is none."""
    built = to_builtins(value, enc_hook=_checked_before, str_keys=True)
    rest: list[tuple[str, Any]] = [("", built)]
    while rest:
        place, each = rest.pop()
        if isinstance(each, float) and not isfinite(each):
            return place
        parts = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list | tuple) else ()
        rest += [(f"{place}.{name}" if place else str(name), part) for name, part in parts]
    return None
