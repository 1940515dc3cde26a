"""`Idempotency-Key`: a request that is repeated with its key schedules no event twice.

An event without an id gets one that is derived from the key, and in a batch from its place, too. So the key works like
an id, on any node, for the event's whole life and its tenant's retention, and nothing else has to be stored. The same
key with another body finds an id that belongs to another event, and is refused.
"""

from __future__ import annotations

import re
from hashlib import sha256

from everbell.errors import InvalidInput, MalformedInput
from everbell.http.message import HttpRequest

HEADER = "idempotency-key"
KEY_LENGTH_MAX = 255

_ID_PREFIX = "once:"
_IN_QUOTES = r'"((?:[ !#-\[\]-~]|\\["\\])+)"'
_WITHOUT = r"[!#-+\--~]+"
_QUOTED = re.compile(_IN_QUOTES, re.ASCII)
_BARE = re.compile(_WITHOUT, re.ASCII)
KEY_PATTERN = f"^({_IN_QUOTES}|{_WITHOUT})$"  # The form of a key in OpenAPI.


def idempotent_id(request: HttpRequest) -> str | None:
    """The id that is derived from the key of a request, with or without quotes. None: the request has no key."""
    text = request.headers.get(HEADER)
    if text is None:
        return None
    quoted = _QUOTED.fullmatch(text)
    if len(text) > KEY_LENGTH_MAX or (quoted is None and _BARE.fullmatch(text) is None):
        raise MalformedInput(f"write up to {KEY_LENGTH_MAX} printable characters, in quotes or without spaces", HEADER)
    key = text if quoted is None else quoted[1]
    return _ID_PREFIX + sha256(key.encode()).hexdigest()[:32]


def mismatch() -> InvalidInput:
    """The error for a key that was used before with another body."""
    return InvalidInput("a request with this key came before, with another body; use another key for it", HEADER)
