"""The address of a server, and the headers that every request to it carries."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TypeVar

from everbell.client.call import Call
from everbell.core.url import split_url
from everbell.errors import InvalidInput

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8420"

_TOKEN = re.compile(r"[!-~]+", re.ASCII)


class ServerAddress:
    """A server's URL, split into its parts, and the access key for it."""

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
        """The target of the request: the path of the call under the path of the server."""
        return self._prefix + call.path

    def headers(self, call: Call[T]) -> dict[str, str]:
        """The headers of a request, without those of the connection."""
        return {**self._headers, **call.headers}
