"""The API of Chronos, a network timer service: timers that pop once or several times, by an HTTP callback.

A timer is an event of the facade's tenant. Its id in a path ends with `-R`, the number of its replicas, as in Chronos.
Everything about a timer that Chronos lets the client choose is in the event; the rest is the tenant's policy, which
`policy` sets and a settings file or document may change. With `durability: store`, R has no meaning.

Where a timer cannot be replaced because it has ended or is dead, a PUT makes a new one, and `Location` has its new id.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from everbell.api.facade import Facade, FacadePorts
from everbell.api.route import ResponseKind, Route
from everbell.core.event import Record
from everbell.core.ids import is_made
from everbell.core.repeat_spec import RepeatSpec
from everbell.core.replication import ReplicasSpec, spec_of
from everbell.core.spec import Draft, EventSpec
from everbell.edge.bodies import Body
from everbell.edge.drafting import check_id, trace_of
from everbell.engine.requests import Cancel, CountTags, Get, Replace
from everbell.engine.seen import DraftResult, Seen
from everbell.engine.turn_batch import TurnBatch
from everbell.errors import (
    Conflict,
    EverbellError,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StoreFull,
    Throttled,
)
from everbell.http.message import HttpRequest, HttpResponse
from everbell.http.problem import problem_of

_TEXT = "text/plain; charset=utf-8"
_OPAQUE_TYPE = "application/octet-stream"
_SECONDS_MAX = 10**9
# How long a PUT waits for the end of an attempt, and how often it looks.
_WAIT_S = 12.0
_LOOK_S = 0.05

Seconds = Annotated[int, Meta(ge=0, le=_SECONDS_MAX)]


class Timing(Struct, frozen=True):
    """When a timer pops. Both spellings of the second field are in use."""

    interval: Seconds
    repeat_for: Seconds | None = msgspec.field(default=None, name="repeat-for")
    repeat_for_too: Seconds | None = msgspec.field(default=None, name="repeat_for")

    @property
    def pops(self) -> int:
        """How often the timer pops."""
        lasts = self.repeat_for if self.repeat_for is not None else self.repeat_for_too
        if lasts is None:
            return 1
        if self.interval == 0:
            if lasts:
                raise InvalidInput("must not be 0 for a timer that repeats", "timing.interval")
            return 1
        return max(1, lasts // self.interval)


class HttpCallback(Struct, frozen=True):
    """The callback of a timer: a POST of `opaque`."""

    uri: str
    opaque: str


class Callbacks(Struct, frozen=True):
    """The kinds of callbacks: HTTP is the only one."""

    http: HttpCallback


class Reliability(Struct, frozen=True):
    """How many nodes hold a timer."""

    replication_factor: int | None = msgspec.field(default=None, name="replication-factor")


class TimerSpec(Struct, frozen=True):
    """A timer as clients of Chronos write it. Unknown fields are ignored, as there."""

    timing: Timing
    callback: Callbacks
    reliability: Reliability = Reliability()
    statistics: Any = None


_PLACED = ResponseKind(200, "the timer is held; `Location` has its path", content_type=_TEXT, headers=("location",))
_REFUSED = ResponseKind(400, "the body is wrong; the text says why", content_type=_TEXT)
_BUSY = ResponseKind(503, "nothing was done; try again", content_type=_TEXT)
_ANSWERS = (_PLACED, _REFUSED, _BUSY)
_EXAMPLE = {
    "timing": {"interval": 30, "repeat-for": 300},
    "callback": {"http": {"uri": "https://registrar.example/refresh", "opaque": "session 17"}},
    "reliability": {"replication-factor": 3},
}


def _route(method: str, path: str, summary: str, *, has_body: bool = True) -> Route:
    return Route(
        method,
        path,
        summary,
        _ANSWERS,
        access="schedule",
        problems=(404,),
        body=TimerSpec if has_body else None,
        example=_EXAMPLE if has_body else None,
        routine=True,
    )


class ChronosApi(Facade, tag="chronos"):
    """Timers, as clients of Chronos ask for them (`--facade chronos=TENANT`)."""

    product = "chronos"
    takes_tenant = True
    policy: ClassVar[Mapping[str, Any]] = {
        "durability": "replicas",
        # Chronos accepts a timer wherever one node can hold it, so no client expects a refusal while a node is away.
        "replicas": {"count": 2, "skew": "2s", "ack": "one"},
        "mode": "payload",
        "sequence_header": "X-Sequence-Number",
        "done": (200,),
        "permanent": (),
    }

    def __init__(self, ports: FacadePorts, tenant: str | None) -> None:
        assert tenant is not None, "the setting names the tenant"
        super().__init__(ports, tenant)
        self._tenant = tenant
        self._body = Body(TimerSpec)
        self._turn = TurnBatch(ports.ask, _one_result)

    @Route("GET", "/ping", "Liveness probe", (ResponseKind(200, "OK", content_type=_TEXT),), access="open")
    async def ping(self, request: HttpRequest) -> HttpResponse:
        """The answer is the text OK."""
        return HttpResponse(200, b"OK", _TEXT)

    @_route("POST", "/timers", "Set a timer")
    async def set_timer(self, request: HttpRequest) -> HttpResponse:
        """The timer is held by as many nodes as its replication factor says."""
        return await self._create(request)

    @_route("POST", "/timers/", "Set a timer, with a slash")
    async def set_timer_too(self, request: HttpRequest) -> HttpResponse:
        """The same as without the slash at the end."""
        return await self._create(request)

    @_route("PUT", "/timers/{timer}", "Set a timer anew, or create it")
    async def reset_timer(self, request: HttpRequest, timer: str) -> HttpResponse:
        """Its time and its sequence number start anew."""
        event_id, factor = _timer_name(timer)
        spec = self._body.parse(request.body)
        draft, factor = self._draft(spec, request, factor)
        made = await self._put(event_id, draft)
        await self._count(spec)
        return _placed(made, factor)

    @_route("DELETE", "/timers/{timer}", "Delete a timer", has_body=False)
    async def delete_timer(self, request: HttpRequest, timer: str) -> HttpResponse:
        """The answer is the same if there is no such timer."""
        event_id, factor = _timer_name(timer)
        with suppress(NotFound, Conflict):  # It never was, or it has ended.
            await self.ask(Cancel(self._tenant, event_id))
        return _placed(event_id, factor)

    def refusal(self, error: EverbellError) -> HttpResponse:
        """Chronos knows 400 for any wrong request, and 503 for everything that may be tried again."""
        if isinstance(error, InvalidInput):
            return HttpResponse(HTTPStatus.BAD_REQUEST, f"{error}\n".encode(), _TEXT)
        if isinstance(error, (Overloaded, Throttled, StoreFull, OutcomeUnknown)):
            pause = (("retry-after", str(error.retry_after_s or 1)),)
            return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), _TEXT, pause)
        return problem_of(error)

    async def _create(self, request: HttpRequest) -> HttpResponse:
        spec = self._body.parse(request.body)
        draft, factor = self._draft(spec, request, None)
        made = await self._schedule(draft)
        await self._count(spec)
        return _placed(made, factor)

    def _draft(self, spec: TimerSpec, request: HttpRequest, named: int | None) -> tuple[Draft, int]:
        """The event of a timer, and its replication factor. `named` is the factor in the path."""
        usual = self.edge.policy(self._tenant)
        factor = spec.reliability.replication_factor
        if named is not None and factor not in (None, named):
            raise InvalidInput(f"is {factor}, but the path says {named}", "reliability.replication-factor")
        factor = factor if factor is not None else named if named is not None else usual.replicas.count
        pops, interval, callback = spec.timing.pops, spec.timing.interval, spec.callback.http
        replicas = None
        if usual.durability == "replicas":
            rest = spec_of(usual.replicas)
            replicas = ReplicasSpec(factor, rest.skew, rest.ack)
        event = EventSpec(
            in_=interval,
            to=callback.uri,
            payload_base64=b64encode(callback.opaque.encode("utf-8", "surrogatepass")).decode(),
            content_type=_OPAQUE_TYPE,
            repeat=RepeatSpec(every=interval, count=pops) if pops > 1 else None,
            replicas=replicas,
        )
        return self.edge.draft(event, self._tenant, trace_of(request)), factor

    async def _schedule(self, draft: Draft) -> str:
        """Schedule a new event, and return its id."""
        result = await self._turn.add(self._tenant, (draft,))
        if isinstance(result, EverbellError):
            raise result
        return result.event.id if isinstance(result, Seen) else result

    async def _put(self, event_id: str, draft: Draft) -> str:
        """Replace the event, or create one. Returns the id of the event there is then."""
        # A stored event gets a new id where its own, made by Everbell, is unknown.
        given = msgspec.structs.replace(draft, id=None if is_made(event_id) else event_id)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _WAIT_S
        while True:
            try:
                return (await self.ask(Replace(self._tenant, event_id, given, None))).event.id
            except Conflict as conflict:
                if await self._is_over(event_id):
                    return await self._schedule(draft)
                # An attempt is in flight, and its outcome would be lost.
                if loop.time() > until_s:
                    raise Overloaded(str(conflict)) from None
            await asyncio.sleep(_LOOK_S)

    async def _is_over(self, event_id: str) -> bool:
        """Whether the event has ended. A dead one is cancelled, because nothing else ends it."""
        with suppress(NotFound, Conflict):  # It has changed since: the next attempt to replace it tells.
            event = (await self.ask(Get(self._tenant, event_id))).event
            if isinstance(event, Record):
                return True
            if event.state == "dead":
                await self.ask(Cancel(self._tenant, event_id))
        return False

    async def _count(self, spec: TimerSpec) -> None:
        tags = tags_in(spec.statistics)
        if tags:
            await self.ask(CountTags(tags))


def tags_in(statistics: Any) -> dict[str, int]:
    """The tags of a timer with their counts. Malformed tags are ignored."""
    tags: Counter[str] = Counter()
    listed = statistics.get("tag-info") if isinstance(statistics, dict) else None
    for tag in listed if isinstance(listed, list) else ():
        if isinstance(tag, dict):
            name, count = tag.get("type"), tag.get("count", 1)
            if isinstance(name, str) and name and type(count) is int and count > 0:
                tags[name] += count
    return dict(tags)


def _timer_name(timer: str) -> tuple[str, int]:
    """The id and the replication factor in a path."""
    event_id, _, factor = timer.rpartition("-")
    if not event_id or not (factor.isascii() and factor.isdecimal()) or len(factor) > 2:
        raise NotFound("a timer is named /timers/<id>-<replication factor>, as in the Location of its answer")
    return check_id(event_id), int(factor)


def _placed(event_id: str, factor: int) -> HttpResponse:
    return HttpResponse(200, b"", _TEXT, (("location", f"/timers/{event_id}-{factor}"),))


def _one_result(
    tenant: str, drafts: Sequence[Draft], results: Sequence[DraftResult], index: int, end: int
) -> DraftResult:
    return results[index]
