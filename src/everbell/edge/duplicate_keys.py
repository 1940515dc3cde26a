"""Duplicate keys in JSON are refused: two programs that read `{"to": a, "to": b}` may see different targets.

The decoder keeps the last of two equal keys, and says nothing. Decoding everything a second time would double the cost
of a request, so there are two steps. A quick look collects everything that looks like a key. If no name is there
twice, no key is. Otherwise, and if a key may be spelt with escapes, the text is read again, key by key. Payloads are
left out: Everbell passes them on as they came, so their meaning is the receiver's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from everbell.core.spec import PlainSpec
from everbell.errors import InvalidInput, MalformedInput, TooLarge

# Both bounds matter: with them, the look takes time in proportion to the text.
_KEY = re.compile(rb'"([A-Za-z0-9_-]{1,64})"[ \t\r\n]*:')
# The bytes of a simple event besides its values, as short as possible.
_LEAST_BYTES = len('{"at":""}\n')
_TO_BYTES = len(',"to":""')
_PAYLOAD_BYTES = len(',"payload":')
_NULL_BYTES = len("null")
_ESCAPED_LETTER = b"\\u00"
_PAYLOAD = "payload"
# A payload from this size on is cut out before the look. Shorter text could be found elsewhere, in a key for example.
_LONG_BYTES = 1_024
# The size of an event without its payload, beyond which it is refused. Reading it again would take too long.
_REST_BYTES_MAX = 256 * 1024


class _Object(Struct):
    """An object of which only this is known: the name of a key that it, or an object in it, has twice."""

    twice: str | None


def check_unique(text: bytes, payload: bytes | Raw | None = None) -> None:
    """Refuse a JSON text in which an object has a key twice, except inside its payload. The text was decoded before.

    Raises `InvalidInput`.
    """
    if payload is not None and len(text) > _LONG_BYTES:
        text = _without(text, bytes(payload))
    names = _KEY.findall(text)
    if len(set(names)) == len(names) and _ESCAPED_LETTER not in text:
        return
    if len(text) > _REST_BYTES_MAX:
        raise TooLarge(f"without its payload, an event has at most {_REST_BYTES_MAX} bytes")
    twice = _twice_in(text)
    if twice is not None:
        raise InvalidInput("is given more than once", twice[:64])


def are_plain_unique(text: bytes, specs: Sequence[PlainSpec]) -> bool:
    """Whether simple events, one a line of a text, surely have no key twice. False: a closer look is needed.

    For the fast way of batches: lines without a superfluous byte have no room for another key. White space between
    keys and values is counted, too.
    """
    least_bytes = _LEAST_BYTES * len(specs)
    for spec in specs:
        at, to, payload_bytes = spec.at, spec.to, len(spec.payload)
        if at is None:
            return False
        least_bytes += len(at) if to is None else len(at) + len(to) + _TO_BYTES
        # An event without a payload has the payload null.
        if payload_bytes != _NULL_BYTES or bytes(spec.payload) != b"null":
            least_bytes += payload_bytes + _PAYLOAD_BYTES
    # The last line may end without a line feed.
    superfluous = len(text) + (text[-1:] != b"\n") - least_bytes
    return not superfluous or superfluous == text.count(b" ") - sum([bytes(spec.payload).count(b" ") for spec in specs])


def _without(text: bytes, payload: bytes) -> bytes:
    """The text without its payload, if that is long."""
    if len(payload) < _LONG_BYTES:
        return text
    start = text.rfind(payload)
    return text if start < 0 else b"%bnull%b" % (text[:start], text[start + len(payload) :])


def _twice_in(text: bytes) -> str | None:
    try:
        # Numbers are not used, and converting a long one takes time.
        found = json.loads(text, object_pairs_hook=_object, parse_int=str, parse_float=str)
    except RecursionError:
        raise MalformedInput("the JSON is nested too deeply") from None
    except ValueError:
        return None  # The decoder has accepted the text: this is a payload with a lone surrogate, or the like.
    return _twice(found)


def _object(pairs: Sequence[tuple[str, Any]]) -> _Object:
    seen: set[str] = set()
    for name, value in pairs:
        if name in seen:
            return _Object(name)
        seen.add(name)
        if name != _PAYLOAD and (inner := _twice(value)) is not None:
            return _Object(inner)
    return _Object(None)


def _twice(value: Any) -> str | None:
    if isinstance(value, _Object):
        return value.twice
    if isinstance(value, list):
        return next((twice for item in value if (twice := _twice(item)) is not None), None)
    return None
