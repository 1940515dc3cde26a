"""Dead events get another chance: those that are named, or all that match, at once or at a rate.

A rate is kept by the due times that the events get, one after the other: nothing has to stay in memory, and it goes on
after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.core.spec import Name
from everbell.engine.bulk import spread
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import InvalidInput
from everbell.server.bodies import Body
from everbell.server.edge import check_id
from everbell.server.message import Request, Response
from everbell.server.search_api import Selection, SkippedError, selection, skipped
from everbell.server.views import json_response

REDRIVE_IDS_MAX = 1_000


class RedriveSpec(Selection, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which dead events to try again: some `ids`, or `all`, narrowed down by what else is given."""

    ids: Annotated[list[Name], Meta(min_length=1, max_length=REDRIVE_IDS_MAX)] | UnsetType = UNSET
    all: bool = False
    rate: Annotated[float, Meta(gt=0, le=1_000_000, description="so many a second, the first at once")] | None = None


class RedrivenView(Struct, frozen=True):
    """How many events got a new set of attempts, and why others did not."""

    redriven: int
    errors: list[SkippedError]


class DeadApi:
    """The handler of `/dead/redrive`."""

    def __init__(self, operations: OperationsPort) -> None:
        self._operations = operations
        self._specs = Body(RedriveSpec)

    async def redrive(self, request: Request, tenant: str) -> Response:
        """Give dead events a new set of attempts."""
        spec = self._specs.read(request)
        request.subject = "all" if spec.ids is UNSET else " ".join(spec.ids)
        if spec.ids is UNSET:
            if not spec.all:
                raise InvalidInput('give ids, or "all": true, alone or narrowed down by key, tag and so on', "ids")
            redriven = await self._operations.redrive_matching(selection(tenant, "dead", spec), spec.rate)
            return json_response(RedrivenView(redriven, []))
        if spec.all or not spec.is_empty:
            raise InvalidInput("give either ids or all, not both; key, tag and so on go with all", "ids")
        return await self._redrive_each(tenant, [check_id(name) for name in dict.fromkeys(spec.ids)], spec.rate)

    async def _redrive_each(self, tenant: str, ids: Sequence[str], rate: float | None) -> Response:
        # At the same time, so that they share the writes of the store.
        delay_ms = spread(rate)
        calls = [self._operations.redrive(tenant, event_id, delay_ms()) for event_id in ids]
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [
            skipped(event_id, result)
            for event_id, result in zip(ids, results, strict=True)
            if not isinstance(result, Seen)
        ]
        return json_response(RedrivenView(len(ids) - len(errors), errors))
