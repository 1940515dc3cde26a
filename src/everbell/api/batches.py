"""Many events in one request: each item creates, replaces or cancels an event. Invalid items are reported by their
place in the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.api.events import EVENTS, EXAMPLE
from everbell.api.route import JSON, LINES, Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.batch_item import BatchItem, ItemDone, ItemSpec, ItemStatus
from everbell.core.request import Ask
from everbell.core.simple_batch import SimpleBatch, may_be_simple
from everbell.edge.batch_body import NotPlain, ReadItem, read_batch, read_plain
from everbell.edge.bodies import check_content_type
from everbell.edge.drafting import Edge, trace_of
from everbell.edge.idempotency import idempotent_id, mismatch
from everbell.edge.turns import in_turns
from everbell.engine.requests import ApplyItems, Schedule
from everbell.engine.seen import DraftResult, Seen
from everbell.errors import Conflict, EverbellError, InvalidInput, Throttled
from everbell.http.message import HttpRequest, HttpResponse

# How many events are decoded before other tasks get a turn, so that a large batch delays nothing else.
_BREATH_EVENTS = 100
# How many units of work are done when events are checked: one for an event and one for each kilobyte of its payload.
_BREATH_WORK = 250
_REPEAT_WORK = 50  # A cron expression is parsed, and its first time is looked for.
_PLAIN_PARTS = 3
ERRORS_MAX = 1_000
"""How many errors an answer names. The client can send the other events again, in smaller batches."""


class BatchError(Struct, frozen=True, omit_defaults=True):
    """Why one event of a batch was refused."""

    index: Annotated[int, Meta(ge=0, description="its place in the batch, from 0; blank lines do not count")]
    status: Annotated[int, Meta(description="the status that the event alone would have got")]
    title: str
    detail: str
    field: str | None = None


class BatchView(Struct, frozen=True):
    """The outcome of a batch."""

    accepted: int
    rejected: int
    ids: Annotated[list[str | None], Meta(description="in the order of the batch; null for a rejected event")]
    errors: Annotated[list[BatchError], Meta(description=f"the first {ERRORS_MAX:,} of those that were rejected")]
    statuses: (
        Annotated[
            list[ItemStatus | Literal["error"]],
            Meta(description="in the order of the batch, if an item has a mode other than create"),
        ]
        | UnsetType
    ) = UNSET


class BatchApi(Resource, tag="many events"):
    """Many events in one request."""

    def __init__(self, ask: Ask, edge: Edge) -> None:
        self._ask = ask
        self._edge = edge

    @Route(
        "POST",
        EVENTS + "/batch",
        "Schedule, replace or cancel many events: one a line, or an array",
        (
            ResponseKind(201, "all were accepted", BatchView),
            ResponseKind(207, "some were accepted", BatchView),
            ResponseKind(422, "none was accepted", BatchView),
        ),
        access="schedule",
        problems=(429, 507),
        body=list[ItemSpec],
        example=[EXAMPLE, {"in": "90s", "to": "queue:reminders"}, {"mode": "cancel", "id": "order-16-timeout"}],
        body_types=(JSON, LINES),
        idempotent=True,
        routine=True,
    )
    async def schedule_batch(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Each item is accepted or rejected on its own; the answer names every one that was rejected, and why. Items of
        one id take effect in their order.
        """
        check_content_type(request, lines=True)
        id_prefix, trace = idempotent_id(request), trace_of(request)
        events_max = self._edge.policy(tenant).limits.batch_events
        # An idempotency key or a trace of the request gives every event an id or a trace, so none of them is plain.
        if id_prefix is None and trace is None and (plain := await self._plain(request.body, tenant)) is not None:
            return self._plain_answer(await self._ask(Schedule(tenant, plain)))
        batch: list[ReadItem] = await in_turns(
            read_batch(request.body, events_max, self._edge.event_bytes_max(tenant)), _BREATH_EVENTS
        )
        places, items, errors = await self._items(batch, tenant, trace, id_prefix)
        if any(item.mode != "create" for item in items):
            return await self._applied(tenant, len(batch), places, items, errors)
        ids: list[str | None] = [None] * len(batch)
        for place, result in zip(places, await self._scheduled(tenant, items), strict=True):
            if isinstance(result, str):
                ids[place] = result
            elif isinstance(result, Seen):
                ids[place] = result.event.id
            elif id_prefix is not None and isinstance(result, Conflict) and _has_prefix(batch[place], id_prefix):
                errors[place] = mismatch()
            else:
                errors[place] = result
        if len(errors) == len(batch):
            _raise_if_not_at_fault(errors)
        return _answer(ids, errors)

    async def _applied(
        self, tenant: str, count: int, places: list[int], items: list[BatchItem], errors: dict[int, EverbellError]
    ) -> HttpResponse:
        """Apply items of which some replace or cancel events."""
        ids: list[str | None] = [None] * count
        statuses: list[ItemStatus | Literal["error"]] = ["error"] * count
        for place, result in zip(places, await self._ask(ApplyItems(tenant, items)), strict=True):
            if isinstance(result, ItemDone):
                ids[place], statuses[place] = result.id, result.status
            else:
                errors[place] = result
        if len(errors) == count:
            _raise_if_not_at_fault(errors)
        return _answer(ids, errors, statuses)

    async def _plain(self, body: bytes, tenant: str) -> SimpleBatch | None:
        """The batch, if all of its events are plain and valid; else None."""
        policy = self._edge.policy(tenant)
        if not may_be_simple(policy):
            return None
        plain = SimpleBatch([], [], [])
        with suppress(NotPlain):
            for part, (lines, specs) in enumerate(read_plain(body), 1):
                if len(plain) + len(specs) > policy.limits.batch_events:
                    return None
                if not self._edge.add_simple(plain, lines, specs, policy):
                    return None
                if part % _PLAIN_PARTS == 0:
                    await asyncio.sleep(0)
            return plain if plain.dues else None
        return None

    def _plain_answer(self, results: Sequence[DraftResult]) -> HttpResponse:
        errors = {place: result for place, result in enumerate(results) if isinstance(result, EverbellError)}
        if len(errors) == len(results):
            _raise_if_not_at_fault(errors)
        return _answer([result if isinstance(result, str) else None for result in results], errors)

    async def _items(
        self, batch: Sequence[ItemSpec | InvalidInput], tenant: str, trace: str | None, id_prefix: str | None
    ) -> tuple[list[int], list[BatchItem], dict[int, EverbellError]]:
        """The places of the valid items, these items, and the errors of the others by place."""
        places: list[int] = []
        items: list[BatchItem] = []
        errors: dict[int, EverbellError] = {}
        checked = self._edge.item
        policy = self._edge.policy(tenant)
        now = self._edge.now()
        work = 0
        for place, spec in enumerate(batch):
            if isinstance(spec, InvalidInput):
                errors[place] = spec
                continue
            new_id = None if id_prefix is None else f"{id_prefix}:{place}"
            try:
                items.append(checked(spec, policy, now, trace, new_id))
                places.append(place)
            except InvalidInput as error:
                errors[place] = error.as_value()
            work += 1 + len(memoryview(spec.payload)) // 1_024 + (0 if spec.repeat is None else _REPEAT_WORK)
            if work >= _BREATH_WORK:
                work = 0
                await asyncio.sleep(0)
        return places, items, errors

    async def _scheduled(self, tenant: str, items: list[BatchItem]) -> Sequence[DraftResult]:
        drafts = [item.draft for item in items if item.draft is not None]
        return await self._ask(Schedule(tenant, drafts)) if drafts else []


def _has_prefix(spec: ItemSpec | EverbellError, id_prefix: str) -> bool:
    """Whether an event got its id from the idempotency key of the request."""
    return isinstance(spec, ItemSpec) and spec.id is not None and spec.id.startswith(id_prefix)


def _raise_if_not_at_fault(errors: dict[int, EverbellError]) -> None:
    """Raise an error that asks for a retry, if nothing was stored and the sender is not at fault for all of it.

    If the outcome of one event is unknown, the batch's outcome is unknown: a retry may schedule that event twice.
    """
    for error in sorted(errors.values(), key=lambda error: error.status in (500, 504), reverse=True):
        if error.status >= 500 or isinstance(error, Throttled):
            raise error


def _answer(
    ids: list[str | None],
    errors: dict[int, EverbellError],
    statuses: list[ItemStatus | Literal["error"]] | UnsetType = UNSET,
) -> HttpResponse:
    accepted = len(ids) - len(errors)
    views = [error_view(index, errors[index]) for index in sorted(errors)[:ERRORS_MAX]]
    view = BatchView(accepted, len(errors), ids, views, statuses)
    return json_response(view, 201 if not errors else 207 if accepted else 422)


def error_view(index: int, error: EverbellError) -> BatchError:
    """The reason why one event of many was rejected."""
    field = error.field if isinstance(error, InvalidInput) else None
    return BatchError(index, error.status, error.title, str(error), field)
