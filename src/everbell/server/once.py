"""`Idempotency-Key`: a request that is repeated with its key makes nothing twice.

Events that have no id of their own get one that is made from the key, and for a batch from their place in it. So the
key works exactly as an id does, on any node, for the event's whole life and its tenant's retention, and nothing else
has to be remembered. The same key with another body finds an id that is taken by another event, and is refused.
"""

from __future__ import annotations

import re
from hashlib import sha256

from everbell.errors import InvalidInput, MalformedInput
from everbell.server.message import Request

HEADER = "idempotency-key"
KEY_LENGTH_MAX = 255

_ID_PREFIX = "once:"
_IN_QUOTES = r'"((?:[ !#-\[\]-~]|\\["\\])+)"'
_WITHOUT = r"[!#-+\--~]+"
_QUOTED = re.compile(_IN_QUOTES, re.ASCII)
_BARE = re.compile(_WITHOUT, re.ASCII)
KEY_PATTERN = f"^({_IN_QUOTES}|{_WITHOUT})$"
"""What a key may look like."""


def once_id(request: Request) -> str | None:
    """The id that the key of a request stands for; None where there is no key. Quotes around it do not matter."""
    text = request.headers.get(HEADER)
    if text is None:
        return None
    quoted = _QUOTED.fullmatch(text)
    if len(text) > KEY_LENGTH_MAX or (quoted is None and _BARE.fullmatch(text) is None):
        raise MalformedInput(f"write up to {KEY_LENGTH_MAX} printable characters, in quotes or without spaces", HEADER)
    key = text if quoted is None else quoted[1]
    return _ID_PREFIX + sha256(key.encode()).hexdigest()[:32]


def mismatch() -> InvalidInput:
    """For a key that came before, with another body."""
    return InvalidInput("a request with this key came before, with another body; use another key for it", HEADER)
