"""One call to a server, as a value: the request, how to read the answer, and whether it may be sent again.

Nothing here does I/O. A client (`blocking`, `awaiting`) sends a call, gets a `Reply` or learns that it is `Lost`, asks
`Persistence` whether to retry and after which pause, and lets `conclude` turn the last outcome into a result or an
error. So the two clients cannot differ in the requests that they send, accept or retry.

The rule for retries: a request that was never sent can always be sent again. A request that may have arrived is sent
again only if carrying it out twice has the same effect as once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import DecodeError, json

from everbell.client.problems import problem_error, retry_after_s
from everbell.errors import InvalidInput, Unreachable

T = TypeVar("T")

ATTEMPTS_MAX = 4
# If a server asks for a longer pause, the caller has to decide whether to wait.
PAUSE_S_MAX = 10.0
ANSWER_BYTES_MAX = 256 * 1024 * 1024

_TOO_LATE = 409
_BUSY = (429, 503)
_IDEMPOTENCY_KEY = re.compile(r"[!#-+\--~]{1,255}", re.ASCII)

RetryPause = Callable[[int], float]
"""The pause in seconds after the n-th failure in a row, n from 1."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request. `path` begins with a slash and is percent-encoded; `parse` reads status and body of a 2xx."""

    method: str
    path: str
    parse: Callable[[int, bytes], T]
    body: bytes = b""
    content_type: str = "application/json"
    version: int | None = None
    """The version of the event that the call is about, if the caller named one."""
    idempotency_key: str | None = None
    """The `Idempotency-Key`, if the caller gave one."""
    worker: str | None = None
    """What a worker tells about itself: the header `Everbell-Worker`."""
    repeatable: bool = False
    """Whether doing it twice is the same as doing it once."""
    also: tuple[int, ...] = ()
    """Statuses that `parse` reads, beside 2xx."""
    wait_s: float = 0.0
    """How long the server may take on purpose, on top of the usual time."""
    doubt: Call[T] | None = None
    """The call that settles a 409 after a retry: the first attempt may have succeeded, with its answer lost. Its
    `parse` raises if that was not so."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that depend on the call. Raises `InvalidInput` for an idempotency key that cannot be sent."""
        headers = {"content-type": self.content_type} if self.body else {}
        if self.version is not None:
            headers["if-match"] = f'"{self.version}"'
        if self.idempotency_key is not None:
            if not _IDEMPOTENCY_KEY.fullmatch(self.idempotency_key):
                raise InvalidInput("is up to 255 of ASCII without spaces, quotes and commas", "idempotency_key")
            headers["idempotency-key"] = self.idempotency_key
        if self.worker is not None:
            headers["everbell-worker"] = self.worker
        return headers


def decoded(kind: type[T]) -> Callable[[int, bytes], T]:
    """A `parse` for answers of one type."""
    decoder = json.Decoder(kind)
    return lambda status, body: decoder.decode(body)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, with the names of its headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """There is no answer. `sent` says whether the server may have got the request."""

    reason: str
    sent: bool
    final: bool = False
    """Whether another attempt would not help, or would break the caller's limit of time."""


def doubling(first_s: float, longest_s: float, jitter: Callable[[], float]) -> RetryPause:
    """Pauses that double, spread over half of their length so that a crowd of clients does not come back at once."""

    def pause_s(failures: int) -> float:
        full_s = min(first_s * 2.0 ** min(failures - 1, 62), longest_s)
        return full_s - full_s * jitter() / 2

    return pause_s


@dataclass(frozen=True, slots=True)
class Persistence:
    """How often a call is tried, and the pauses between the attempts."""

    backoff: RetryPause
    attempts_max: int = ATTEMPTS_MAX

    def pause_s(self, call: Call[T], attempt: int, outcome: Reply | Lost) -> float | None:
        """The pause before the next attempt; None when this outcome is the last."""
        if attempt >= self.attempts_max:
            return None
        if isinstance(outcome, Lost):
            may_repeat = not outcome.final and (call.repeatable or not outcome.sent)
            return self.backoff(attempt) if may_repeat else None
        if outcome.status not in _BUSY or not call.repeatable:
            return None
        pause_s = max(self.backoff(attempt), retry_after_s(outcome.headers) or 0.0)
        return pause_s if pause_s <= PAUSE_S_MAX else None


def in_doubt(call: Call[T], attempt: int, outcome: Reply | Lost) -> Call[T] | None:
    """The call to make before the outcome of a retry is believed, if there is one."""
    late = attempt > 1 and isinstance(outcome, Reply) and outcome.status == _TOO_LATE
    return call.doubt if late else None


def conclude(call: Call[T], outcome: Reply | Lost, server: str) -> T:
    """The result of a call, or the error that its outcome means."""
    if isinstance(outcome, Lost):
        raise Unreachable(_unreachable(call, outcome, server))
    if not 200 <= outcome.status < 300 and outcome.status not in call.also:
        raise problem_error(outcome.status, outcome.headers, outcome.body)
    try:
        return call.parse(outcome.status, outcome.body)
    except DecodeError as error:
        raise Unreachable(
            f"the program at {server} does not answer like an Everbell server ({error}): check the address"
        ) from error


def _unreachable(call: Call[T], lost: Lost, server: str) -> str:
    if not lost.sent:
        return f"cannot reach {server}: {lost.reason}. Nothing was sent: check the address, and that the server runs"
    if call.method == "GET":
        return f"{server} gave no answer: {lost.reason}. Try again"
    if call.repeatable:
        advice = "it is safe to repeat it"
    elif call.method == "POST" and call.path.endswith(("/events", "/events/batch")):
        advice = "look before you repeat it, and give events an id of your own to make repeating safe"
    else:
        advice = "look before you repeat it"
    return f"{server} gave no answer: {lost.reason}. Whether the request was carried out is unknown; {advice}"
