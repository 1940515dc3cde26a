"""Applying requests of BigBen: in their order for each id, with a status for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everbell.core.batch_item import ItemDone, ItemResult
from everbell.core.bigben import EventError, EventResponse
from everbell.core.request import Ask
from everbell.edge.drafting import Edge
from everbell.engine.requests import ApplyItems
from everbell.errors import BeingDelivered, Conflict, EverbellError, InvalidInput
from everbell.facades.bigben_request import EventPlan, EventRequest, plan, response, until_registered

_PART = 1_000
"""How many items go to the engine together."""
# How long a request waits for the end of an attempt, and how often it looks.
_WAIT_S = 12.0
_LOOK_S = 0.05
_TURN = 100


async def schedule(requests: Sequence[EventRequest], ask: Ask, edge: Edge) -> list[EventResponse]:
    """Apply requests. An answer with the status ERROR may be tried again. Raises the error of the first one if none
    could be applied and all may be tried again.
    """
    tenants = {request.tenant for request in requests if request.mode == "UPSERT"}
    await asyncio.gather(*(until_registered(tenant, edge) for tenant in tenants))
    now = edge.now()
    plans: list[EventPlan | EverbellError] = []
    for number, request in enumerate(requests, 1):
        try:
            plans.append(plan(request, edge, now))
        except InvalidInput as wrong:
            plans.append(wrong.as_value())
        if number % _TURN == 0:
            await asyncio.sleep(0)
    results: list[ItemResult | None] = [one if isinstance(one, EverbellError) else None for one in plans]
    places: dict[str, list[int]] = {}
    for place, one in enumerate(plans):
        if isinstance(one, EventPlan):
            places.setdefault(one.tenant, []).append(place)
    for tenant, those in places.items():
        await _apply(tenant, those, plans, results, ask)
    _raise_if_none_was_taken(results)
    return [_answer(*one, now) for one in zip(requests, plans, results, strict=True)]


async def _apply(
    tenant: str,
    places: Sequence[int],
    plans: Sequence[EventPlan | EverbellError],
    results: list[ItemResult | None],
    ask: Ask,
) -> None:
    """Apply the items of one tenant. Those of an event that is being delivered are tried again for a while."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _WAIT_S
    while places:
        for start in range(0, len(places), _PART):
            part = places[start : start + _PART]
            items = [one.item for one in (plans[place] for place in part) if isinstance(one, EventPlan)]
            done: Sequence[ItemResult]
            try:
                done = await ask(ApplyItems(tenant, items))
            except EverbellError as failed:
                done = [failed.as_value()] * len(part)
            for place, result in zip(part, done, strict=True):
                results[place] = result
        places = [place for place in places if isinstance(results[place], BeingDelivered)]
        if loop.time() > until_s:
            return
        if places:
            await asyncio.sleep(_LOOK_S)


def _answer(
    request: EventRequest, planned: EventPlan | EverbellError, result: ItemResult | None, now: int
) -> EventResponse:
    if isinstance(result, InvalidInput):
        return response(request, "REJECTED", now, EventError(400, str(result)))
    if isinstance(result, ItemDone):
        if result.status == "cancelled":
            return response(request, "DELETED", now)
        if result.status == "unknown":
            return response(request, None, now)
        is_late = isinstance(planned, EventPlan) and planned.is_late
        return response(request, "TRIGGERED" if is_late else _WORDS[result.status], now)
    assert isinstance(result, EverbellError), "every item has a result"
    if request.mode == "REMOVE" and isinstance(result, Conflict) and not isinstance(result, BeingDelivered):
        return response(request, "DELETED", now)  # It has ended.
    return response(request, "ERROR", now, EventError(result.status, str(result)))


_WORDS = {"created": "ACCEPTED", "replaced": "UPDATED"}


def _raise_if_none_was_taken(results: Sequence[ItemResult | None]) -> None:
    errors = [result for result in results if isinstance(result, EverbellError)]
    if len(errors) == len(results) and errors and all(_may_be_mended(error) for error in errors):
        raise errors[0]


def _may_be_mended(error: EverbellError) -> bool:
    return error.status >= 500 or error.status == 429
