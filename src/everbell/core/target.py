"""Where a delivery goes: `https://…`, `http://…`, `queue:name`, `handler:name`.

A target belongs to a group — the host of a URL, the queue, the handler. Caps and fairness work on groups, so that a
slow host is one slow thing however many URLs it has.
"""

from __future__ import annotations

import re
from functools import lru_cache

from everbell.core.url import split_url
from everbell.errors import InvalidInput

TARGET_LENGTH_MAX = 2_048

_SCHEME_LENGTH_MAX = len("https://")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@lru_cache(maxsize=10_000)
def group_of(target: str) -> str:
    """The group of a target, after checking that it is one. Raises `InvalidInput` for the field `to`."""
    if len(target) > TARGET_LENGTH_MAX:
        raise InvalidInput(f"is longer than {TARGET_LENGTH_MAX} characters", "to")
    scheme, colon, rest = target.partition(":")
    if scheme in ("queue", "handler") and colon:
        if not _NAME.fullmatch(rest):
            raise InvalidInput(
                f"{rest[:64]!r} is not a {scheme} name: letters, digits, dot, dash and underscore, at most 128",
                "to",
            )
        return target
    if scheme in ("http", "https") and rest.startswith("//"):
        return _authority(target)
    raise InvalidInput(f"{target[:64]!r} is not a target; write https://…, http://…, queue:name or handler:name", "to")


def stem_of(target: str) -> str:
    """A part of the target that decides its group: of a URL what comes before its path, as it was written.

    Cheaper than the group itself, and there are few of them even where every event has a URL of its own.
    """
    end = target.find("/", _SCHEME_LENGTH_MAX)
    return target if end < 0 else target[:end]


def _authority(url: str) -> str:
    try:
        scheme, host, port, _ = split_url(url)
    except InvalidInput as invalid:
        raise InvalidInput(invalid.reason, "to") from None
    return f"{scheme}://{host}:{port}"
