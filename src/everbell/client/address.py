"""Where a server is, and what every request to it carries."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TypeVar

from everbell.client.call import Call
from everbell.core.url import split_url
from everbell.errors import InvalidInput

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8420"

_ONCE_KEY = re.compile(r"[!#-+\--~]{1,255}", re.ASCII)
_TOKEN = re.compile(r"[!-~]+", re.ASCII)


class Address:
    """A server's URL, taken apart, and the token that opens it."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises `InvalidInput` when the URL or the token cannot be used."""
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidInput("has characters that cannot be sent: printable ASCII without spaces only", "token")
        self.url = url.rstrip("/")
        self.scheme, self.host, self.port, path = split_url(self.url)
        if "?" in path:
            raise InvalidInput("a server's URL ends with its path; leave the query (?…) away")
        self._prefix = path.rstrip("/")
        self._headers = {"accept": "application/json", "user-agent": f"everbell/{version('everbell')}"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def target(self, call: Call[T]) -> str:
        """What to ask for: the path under which this server answers."""
        return self._prefix + call.path

    def headers(self, call: Call[T]) -> dict[str, str]:
        """The headers of a request, without those of the connection."""
        headers = dict(self._headers)
        if call.body:
            headers["content-type"] = call.content_type
        if call.version is not None:
            headers["if-match"] = f'"{call.version}"'
        if call.once_key is not None:
            if not _ONCE_KEY.fullmatch(call.once_key):
                raise InvalidInput("is up to 255 of ASCII without spaces, quotes and commas", "idempotency_key")
            headers["idempotency-key"] = call.once_key
        return headers
