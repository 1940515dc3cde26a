"""From a problem (RFC 9457) that a server answered with to the error that it was made from.

A problem names its kind by the last part of its `type`, which is the `slug` of an error. A kind that this
version does not know becomes a `ProblemError` with the status of the answer: a newer server, or a proxy in front of it,
may use other kinds.
"""

from __future__ import annotations

from msgspec import DecodeError, Struct
from msgspec import json as msgspec_json

from everbell import errors
from everbell.errors import EverbellError, InvalidInput, Overloaded

_DETAIL_LENGTH_MAX = 1_000

_KINDS: dict[str, type[EverbellError]] = {
    kind.slug: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EverbellError) and kind is not EverbellError
}
# If only the status is known, the kind that was defined first: later kinds of the same status are more specific.
# Status 500 fits too many kinds.
_BY_STATUS: dict[int, type[EverbellError]] = {
    kind.status: kind for kind in reversed(_KINDS.values()) if kind.status != EverbellError.status
}


class ProblemError(EverbellError):
    """The server refused, or failed, for a reason that has no class of its own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ProblemBody(Struct, frozen=True):
    """The body of an error."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str | None = None
    field: str | None = None


def problem_error(status: int, headers: dict[str, str], body: bytes) -> EverbellError:
    """The error that an answer other than 2xx stands for."""
    try:
        problem = msgspec_json.decode(body, type=ProblemBody)
    except DecodeError:
        text = body[:_DETAIL_LENGTH_MAX].decode("utf-8", "replace").strip()
        return ProblemError(f"the server answered with status {status}" + (f": {text}" if text else ""), status)
    return error_of(problem, status, retry_after_s(headers))


def error_of(problem: ProblemBody, status: int, pause_s: float | None = None) -> EverbellError:
    """The error that a problem was made from."""
    kind = _KINDS.get(problem.type.rpartition("/")[2]) or _BY_STATUS.get(status) or ProblemError
    detail = problem.detail or problem.title or f"status {status}"
    if issubclass(kind, InvalidInput):
        field = problem.field
        return kind(detail.removeprefix(f"{field}: ") if field else detail, field)
    if issubclass(kind, Overloaded):
        return kind(detail, 1 if pause_s is None else int(pause_s))
    if issubclass(kind, ProblemError):
        return kind(detail, status)
    return kind(detail)


def retry_after_s(headers: dict[str, str]) -> float | None:
    """The pause that the server asked for, if it gave one in seconds."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isdecimal() else None
