"""The operations page: its files, as browsers get them from every node.

The page is made of ES modules, style sheets and one HTML file in `ui/`. They are read once, at the first request, and
they load nothing from elsewhere. Their content security policy forbids inline scripts, inline styles and, with trusted
types, every way of turning text into markup: text of users (ids, payloads, notes) can only ever be shown as text.

The files have no secrets, so they need no access key. The page asks for one where the server requires it, and sends it
with its calls of the API.
"""

from __future__ import annotations

from functools import cache
from gzip import compress
from hashlib import sha256
from importlib.resources import files

from msgspec import Struct

from everbell.api.audit import AuditLine, AuditLog, Extent
from everbell.api.route import HTML, Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.errors import NotFound
from everbell.http.message import HttpRequest, HttpResponse

INDEX = "index.html"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# A browser asks each time whether a file changed: after an upgrade, old and new modules are never mixed for long.
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-cache"),
    ("vary", "accept-encoding"),
)


class PageFile(Struct, frozen=True):
    """A file of the page, as it is and compressed."""

    content: bytes
    packed: bytes
    content_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """All files of the page, by name."""
    found: dict[str, PageFile] = {}
    for entry in files("everbell.api").joinpath("ui").iterdir():
        kind = _TYPES.get(entry.name[entry.name.rfind(".") :])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = PageFile(content, compress(content, mtime=0), kind, f'"{sha256(content).hexdigest()}"')
    return found


class AuditView(Struct, frozen=True):
    """The latest lines of the audit log."""

    extent: Extent
    """What is logged."""
    lines: list[AuditLine]
    """The newest comes first."""


class PageApi(Resource, tag="page"):
    """The operations page for browsers, at `/`, its files, and what only this page shows."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def index(self, request: HttpRequest) -> HttpResponse:
        """The page itself."""
        return _respond(request, page_files()[INDEX])

    @Route(
        "GET",
        "/v1/audit",
        "Read the latest lines of the audit log",
        (ResponseKind(200, "the latest lines", AuditView),),
        access="admin",
        no_client="the audit log is a file; this is a glance at it",
        no_command="the audit log is a file; this is a glance at it",
    )
    def audit(self, request: HttpRequest) -> HttpResponse:
        """The last 200 requests that the answering process has logged since it started. The log itself has all."""
        return json_response(AuditView(self._audit.extent, [*reversed(self._audit.latest)]))

    @Route(
        "GET",
        "/ui/{file}",
        "A file of the operations page",
        (ResponseKind(200, "a script or a style sheet", content_type="text/javascript"),),
        access="open",
        problems=(404,),
        no_client="for browsers",
        no_command="for browsers",
    )
    def page_file(self, request: HttpRequest, name: str) -> HttpResponse:
        """Browsers load these files from the page."""
        file = page_files().get(name)
        if file is None:
            raise NotFound(f"the page has no file {name[:128]!r}; reload the page")
        return _respond(request, file)


def _respond(request: HttpRequest, file: PageFile) -> HttpResponse:
    headers = (("etag", file.etag), *_HEADERS)
    if request.headers.get("if-none-match") == file.etag:
        return HttpResponse(304, b"", file.content_type, headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return HttpResponse(200, file.packed, file.content_type, (*headers, ("content-encoding", "gzip")))
    return HttpResponse(200, file.content, file.content_type, headers)
