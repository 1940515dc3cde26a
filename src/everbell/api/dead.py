"""Dead events over HTTP: find, discard and redrive them.

Events are redriven at once or at a rate. The rate is kept by spreading their due times: nothing has to stay in memory,
and a restart does not change the rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.search import (
    CANCELLED,
    FOUND,
    PAGE_EVENTS_MAX,
    CancelQuery,
    PageQuery,
    Selection,
    SkippedError,
    cancel_found,
    find_page,
    selection,
    skipped,
)
from everbell.api.timestamps import instant
from everbell.api.views import json_response
from everbell.core.dead_view import GROUPS_MAX, DeadGroup, DeadGroupsView
from everbell.core.event import Event, Record
from everbell.core.request import Ask
from everbell.core.spec import Name
from everbell.core.target import group_of
from everbell.edge.bodies import Body, read_query
from everbell.edge.drafting import Edge, check_id
from everbell.engine.bulk import spread
from everbell.engine.requests import Find, Redrive, RedriveMatching
from everbell.engine.seen import Seen
from everbell.errors import InvalidInput
from everbell.http.message import HttpRequest, HttpResponse

DEAD = TENANT + "/dead"
REDRIVE_IDS_MAX = 1_000
GROUPED_MAX = 20_000
"""How many dead events one request reads to group them."""


class RedriveSpec(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The dead events to redrive: some `ids`, or `all`, alone or with a selection."""

    ids: Annotated[list[Name], Meta(min_length=1, max_length=REDRIVE_IDS_MAX)] | UnsetType = UNSET
    all: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000, description="events per second, the first at once")] | None = None


class RedrivenView(Struct, frozen=True):
    """How many events got a new set of attempts, and why others did not."""

    redriven: int
    errors: list[SkippedError]


class DeadApi(Resource, tag="dead events"):
    """Events that used up their attempts, or were refused."""

    def __init__(self, ask: Ask, edge: Edge) -> None:
        self._ask = ask
        self._edge = edge
        self._specs = Body(RedriveSpec)

    @Route(
        "GET",
        DEAD,
        "Find dead events",
        (FOUND,),
        access="read",
        query=PageQuery,
        large=True,
        no_command="everbell list --status dead finds them",
    )
    async def find_dead(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Each comes with the reason and its attempts. Follow the cursor until there is none."""
        query = read_query(request, PageQuery)
        return await find_page(self._ask, self._edge, selection(tenant, "dead", query), query)

    @Route(
        "GET",
        DEAD + "/groups",
        "Group dead events by target and reason",
        (ResponseKind(200, "the groups", DeadGroupsView),),
        access="read",
        shared=True,
        query=Selection,
    )
    async def group_dead(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The oldest 20,000 dead events are read. Redrive and discard take `target` and `reason` of a group."""
        chosen = selection(tenant, "dead", read_query(request, Selection))
        groups: dict[tuple[str, str], DeadGroup] = {}
        counted, cursor = 0, None
        while counted < GROUPED_MAX:
            found, cursor = await self._ask(Find(chosen, cursor, PAGE_EVENTS_MAX))
            for seen in found:
                _add_to_group(groups, seen.event)
            counted += len(found)
            if cursor is None:
                break
        largest = sorted(groups.values(), key=lambda group: -group.count)
        return json_response(
            DeadGroupsView(tuple(largest[:GROUPS_MAX]), counted, cursor is not None or len(largest) > GROUPS_MAX)
        )

    @Route(
        "DELETE",
        DEAD,
        "Discard all dead events that match",
        (CANCELLED,),
        access="schedule",
        problems=(507,),
        query=CancelQuery,
    )
    async def discard_dead(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """They are cancelled. With a limit, one page is discarded."""
        query = read_query(request, CancelQuery)
        return await cancel_found(self._ask, request, query, selection(tenant, "dead", query))

    @Route(
        "POST",
        DEAD + "/redrive",
        "Give dead events a new set of attempts",
        (ResponseKind(200, "the events are scheduled again", RedrivenView),),
        access="schedule",
        problems=(507,),
        body=RedriveSpec,
        example={"all": True, "tag": "checkout", "rate": 50},
    )
    async def redrive_dead(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """Name some `ids`, or give `all`, alone or with a selection. A `rate` spreads them over time."""
        spec = self._specs.read(request)
        request.subject = "all" if spec.ids is UNSET else " ".join(spec.ids)
        if spec.ids is UNSET:
            if not spec.all:
                raise InvalidInput('give ids, or "all": true, alone or narrowed down by key, tag and so on', "ids")
            request.subject = _as_text(spec)
            request.affected = await self._ask(RedriveMatching(selection(tenant, "dead", spec), spec.rate))
            return json_response(RedrivenView(request.affected, []))
        if spec.all or not spec.is_empty:
            raise InvalidInput("give either ids or all, not both; key, tag and so on go with all", "ids")
        view = await self._redrive_each(tenant, [check_id(name) for name in dict.fromkeys(spec.ids)], spec.rate)
        request.affected = view.redriven
        return json_response(view)

    async def _redrive_each(self, tenant: str, ids: Sequence[str], rate: float | None) -> RedrivenView:
        # Concurrent calls share the store's writes.
        delay_ms = spread(rate)
        calls = [self._ask(Redrive(tenant, event_id, delay_ms())) for event_id in ids]
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [
            skipped(event_id, result)
            for event_id, result in zip(ids, results, strict=True)
            if not isinstance(result, Seen)
        ]
        return RedrivenView(len(ids) - len(errors), errors)


def _add_to_group(groups: dict[tuple[str, str], DeadGroup], event: Event | Record) -> None:
    name = (group_of(event.to), event.reason or "")
    known = groups.get(name)
    at = instant(event.due_at)
    groups[name] = DeadGroup(
        *name,
        1 if known is None else known.count + 1,
        at if known is None else max(at, known.latest),
        event.id if known is None else known.example,
    )


def _as_text(spec: RedriveSpec) -> str:
    """The selection for the audit log, such as `all tag=checkout`."""
    named = [f"{name}={value}" for name, value in to_builtins(spec).items() if name != "all" and value]
    return " ".join(["all", *named])
