"""Many events in one request: the good ones are scheduled, the bad ones are named by their place in the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from everbell.core.plain import Plain, may_be_plain
from everbell.core.spec import Draft, EventSpec
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import Conflict, EverbellError, InvalidInput, Throttled
from everbell.server.batch_body import NotPlain, read_batch, read_plain
from everbell.server.bodies import check_content_type
from everbell.server.edge import Edge, trace_of
from everbell.server.message import Request, Response
from everbell.server.once import mismatch, once_id
from everbell.server.views import json_response

_BREATH_EVENTS = 250
"""After so many checked events the loop gets a turn: a large batch must not make others late."""


class BatchError(Struct, frozen=True, omit_defaults=True):
    """Why one event of a batch was refused."""

    index: Annotated[int, Meta(ge=0, description="its place in the batch, from 0; blank lines do not count")]
    status: Annotated[int, Meta(description="what it would have been answered alone")]
    title: str
    detail: str
    field: str | None = None


class BatchView(Struct, frozen=True):
    """What became of a batch."""

    accepted: int
    rejected: int
    ids: Annotated[list[str | None], Meta(description="in the order of the batch; null for what was rejected")]
    errors: list[BatchError]


class BatchApi:
    """The handler of `/events/batch`."""

    def __init__(self, operations: OperationsPort, edge: Edge) -> None:
        self._operations = operations
        self._edge = edge

    async def schedule(self, request: Request, tenant: str) -> Response:
        """201 when all were accepted, 207 when some were, 422 when none was."""
        check_content_type(request, lines=True)
        once, trace = once_id(request), trace_of(request)
        events_max = self._edge.policy(tenant).limits.batch_events
        # With a key or a trace of the request, every event gets an id or a trace.
        if once is None and trace is None and (plain := await self._plain(request.body, tenant)) is not None:
            return self._plain_answer(await self._operations.schedule_plain(tenant, plain))
        batch = read_batch(request.body, events_max)
        places, drafts, errors = await self._drafts(batch, tenant, trace, once)
        ids: list[str | None] = [None] * len(batch)
        for place, result in zip(places, await self._scheduled(tenant, drafts), strict=True):
            if isinstance(result, str):
                ids[place] = result
            elif isinstance(result, Seen):
                ids[place] = result.event.id
            elif once is not None and isinstance(result, Conflict) and _is_of(once, batch[place]):
                errors[place] = mismatch()
            else:
                errors[place] = result
        if len(errors) == len(batch):
            _raise_if_not_at_fault(errors)
        return _answer(ids, errors)

    async def _plain(self, body: bytes, tenant: str) -> Plain | None:
        """A batch of nothing but plain events in which nothing is wrong; None for any other."""
        policy = self._edge.policy(tenant)
        if not may_be_plain(policy):
            return None
        plain = Plain([], [], [])
        breath = _BREATH_EVENTS
        with suppress(NotPlain):
            for lines, specs in read_plain(body):
                if len(plain) + len(specs) > policy.limits.batch_events:
                    return None
                if not self._edge.add_plain(plain, lines, specs, policy):
                    return None
                if len(plain) > breath:
                    breath = len(plain) + _BREATH_EVENTS
                    await asyncio.sleep(0)
            return plain if plain.dues else None
        return None

    def _plain_answer(self, results: Sequence[str | Seen | EverbellError]) -> Response:
        errors = {place: result for place, result in enumerate(results) if isinstance(result, EverbellError)}
        if len(errors) == len(results):
            _raise_if_not_at_fault(errors)
        return _answer([result if isinstance(result, str) else None for result in results], errors)

    async def _drafts(
        self, batch: Sequence[EventSpec | InvalidInput], tenant: str, trace: str | None, once: str | None
    ) -> tuple[list[int], list[Draft], dict[int, EverbellError]]:
        """Where the good ones are, their drafts, and what is wrong with the others."""
        places: list[int] = []
        drafts: list[Draft] = []
        errors: dict[int, EverbellError] = {}
        checked = self._edge.checked
        policy = self._edge.policy(tenant)
        now = self._edge.now()
        for start in range(0, len(batch), _BREATH_EVENTS):
            if start:
                await asyncio.sleep(0)
            for place, spec in enumerate(batch[start : start + _BREATH_EVENTS], start):
                if isinstance(spec, InvalidInput):
                    errors[place] = spec
                    continue
                if once is not None and spec.id is None:
                    spec.id = f"{once}:{place}"
                try:
                    drafts.append(checked(spec, policy, now, trace))
                    places.append(place)
                except InvalidInput as error:
                    errors[place] = error.as_value()
        return places, drafts, errors

    async def _scheduled(self, tenant: str, drafts: list[Draft]) -> list[str | Seen | EverbellError]:
        return await self._operations.schedule_ids(tenant, drafts) if drafts else []


def _is_of(once: str, spec: EventSpec | EverbellError) -> bool:
    """Whether an event got its id from the key of the request."""
    return isinstance(spec, EventSpec) and spec.id is not None and spec.id.startswith(once)


def _raise_if_not_at_fault(errors: dict[int, EverbellError]) -> None:
    """Where nothing was stored and not all is the sender's fault, the answer is one that says: try again.

    If of one of them that is not known, it is not known of the batch: who tries again may have it twice.
    """
    for error in sorted(errors.values(), key=lambda error: error.status in (500, 504), reverse=True):
        if error.status >= 500 or isinstance(error, Throttled):
            raise error


def _answer(ids: list[str | None], errors: dict[int, EverbellError]) -> Response:
    accepted = len(ids) - len(errors)
    view = BatchView(accepted, len(errors), ids, [error_view(index, errors[index]) for index in sorted(errors)])
    return json_response(view, 201 if not errors else 207 if accepted else 422)


def error_view(index: int, error: EverbellError) -> BatchError:
    """Why one of many was refused."""
    field = error.field if isinstance(error, InvalidInput) else None
    return BatchError(index, error.status, error.title, str(error), field)
