"""Dead events get another chance: those that are named, or all that match."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from everbell.core.spec import Name
from everbell.engine.port import OperationsPort, Seen
from everbell.errors import EverbellError, InvalidInput
from everbell.server.bodies import Body
from everbell.server.edge import check_id
from everbell.server.message import Request, Response
from everbell.server.search_api import KeyField, TagField, selection
from everbell.server.views import json_response

REDRIVE_IDS_MAX = 1_000


class RedriveSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead events to try again: some `ids`, or `all`, narrowed down by a key or a tag."""

    ids: Annotated[list[Name], Meta(min_length=1, max_length=REDRIVE_IDS_MAX)] | UnsetType = UNSET
    all: bool = False
    key: KeyField = UNSET
    tag: TagField = UNSET


class RedriveError(Struct, frozen=True):
    """Why one event was not redriven."""

    id: str
    status: int
    title: str
    detail: str


class RedrivenView(Struct, frozen=True):
    """How many events got a new set of attempts, and why others did not."""

    redriven: int
    errors: list[RedriveError]


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
                raise InvalidInput('give ids, or "all": true with or without key and tag', "ids")
            chosen = selection(tenant, "dead", spec.key, spec.tag)
            return json_response(RedrivenView(await self._operations.redrive_matching(chosen), []))
        if spec.all or spec.key is not UNSET or spec.tag is not UNSET:
            raise InvalidInput("give either ids or all, not both; key and tag go with all", "ids")
        return await self._redrive_each(tenant, [check_id(event_id) for event_id in dict.fromkeys(spec.ids)])

    async def _redrive_each(self, tenant: str, ids: list[str]) -> Response:
        # At the same time, so that they share the writes of the store.
        calls = [self._operations.redrive(tenant, event_id) for event_id in ids]
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [
            _error(event_id, result)
            for event_id, result in zip(ids, results, strict=True)
            if not isinstance(result, Seen)
        ]
        return json_response(RedrivenView(len(ids) - len(errors), errors))


def _error(event_id: str, error: BaseException) -> RedriveError:
    if not isinstance(error, EverbellError) or error.status >= 500:
        raise error
    return RedriveError(event_id, error.status, error.title, str(error))
