"""Where a delivery goes: `https://…`, `http://…`, `queue:name`, `handler:name`.

A target belongs to a group — the host of a URL, the queue, the handler. Caps and fairness work on groups, so that a slow
host is one slow thing however many URLs it has.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

from everbell.errors import InvalidInput

TARGET_LENGTH_MAX = 2_048

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_URL_SAFE = re.compile(r"[!-~]+", re.ASCII)


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


def _authority(url: str) -> str:
    if not _URL_SAFE.fullmatch(url):
        raise InvalidInput("a URL has only printable ASCII characters; percent-encode the others", "to")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidInput(f"{url[:64]!r} is not a URL", "to") from None
    if not parts.hostname:
        raise InvalidInput("the URL has no host", "to")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("a URL must not carry a user name or password; use headers", "to")
    if parts.fragment:
        raise InvalidInput("a URL to deliver to has no fragment (#…)", "to")
    if port == 0:
        raise InvalidInput("port 0 cannot be connected to", "to")
    return f"{parts.scheme}://{parts.hostname}:{port or (443 if parts.scheme == 'https' else 80)}"


def queue_name(target: str) -> str | None:
    """The queue that workers lease this target's events from, if it is one."""
    return target[6:] if target.startswith("queue:") else None
