"""One key: who has to end before its others may go, how many wait, and how to get rid of a head that is stuck."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from everbell.core.spec import check_name
from everbell.engine.port import OperationsPort
from everbell.errors import NotFound
from everbell.server.bodies import version_of
from everbell.server.message import Request, Response
from everbell.server.views import EventView, event_response, event_view, json_response


class LineView(Struct, frozen=True, omit_defaults=True):
    """A key as it is now."""

    key: str
    waiting: Annotated[int, Meta(description="due, and in line behind the head")]
    more: Annotated[bool, Meta(description="whether there are more than were counted")] = False
    head: Annotated[EventView, Meta(description="what the others wait for; none: nothing of the key is due")] | None = (
        None
    )


class LinesApi:
    """The handlers of `/keys/{ordering_key}`."""

    def __init__(self, operations: OperationsPort) -> None:
        self._operations = operations

    async def look(self, request: Request, tenant: str, key: str) -> Response:
        """The head and the number of those behind it."""
        check_name(key, "key")
        line = await self._operations.line(tenant, key)
        head = None if line.head is None else event_view(line.head)
        return json_response(LineView(key, line.waiting, line.is_more, head))

    async def drop_head(self, request: Request, tenant: str, key: str) -> Response:
        """Cancel the event that the others of the key wait for."""
        check_name(key, "key")
        line = await self._operations.line(tenant, key)
        if line.head is None:
            raise NotFound(f"nothing of the key {key!r} is due, so it has no head to drop")
        return event_response(await self._operations.cancel(tenant, line.head.event.id, version_of(request)))
