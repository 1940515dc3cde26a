"""A row of an outbox, and the request that it becomes: the JSON is that of the HTTP API."""

from __future__ import annotations

import logging

from msgspec import Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.spec import ChangeSpec, Draft, EventSpec
from everbell.edge.bodies import Body
from everbell.edge.drafting import Edge
from everbell.engine.requests import Amend, Cancel
from everbell.errors import InvalidInput
from everbell.outbox.settings import OutboxAddress

MADE_ID_PREFIX = "tx:"
"""The ids of events that name none; outbox.sql makes them."""

_log = logging.getLogger("everbell.outbox")
_event = Body(EventSpec).parse
_change = Body(ChangeSpec).parse


class OutboxRow(Struct, frozen=True):
    """A row as it was read."""

    seq: int
    kind: str
    tenant: str | None
    id: str
    asked_at: int
    body: str | None


class AskedRow(Struct, frozen=True):
    """A row that was understood: a draft to schedule, or a change of an event."""

    row: OutboxRow
    tenant: str
    asked: Draft | Amend | Cancel


class RowReader:
    """Understands the rows of one outbox, under the policies of their tenants."""

    def __init__(self, address: OutboxAddress, edge: Edge, clock: Clock) -> None:
        self._address = address
        self._edge = edge
        self._now = clock.now

    def read(self, row: OutboxRow, identity: str) -> AskedRow | str:
        """The row's request, or the reason for a refusal. `identity` names the outbox in marks."""
        try:
            tenant = self._address.tenant_of(row.tenant)
            return AskedRow(row, tenant, self._asked(row, tenant, identity))
        except InvalidInput as wrong:
            return str(wrong)
        except Exception as unforeseen:
            # The result depends on the row alone: a retry would block the outbox for ever.
            _log.exception("row %d of %s cannot be read", row.seq, self._address.name)
            return f"cannot be read: {unforeseen!r}"

    def _asked(self, row: OutboxRow, tenant: str, identity: str) -> Draft | Amend | Cancel:
        body = (row.body or "").encode()
        now = min(row.asked_at, self._now())  # `in` counts from the call of the function.
        if row.kind == "c":
            return Cancel(tenant, row.id)
        if row.kind == "s":
            spec = _event(body)
            spec.id = row.id
            return self._edge.checked(spec, self._edge.policy(tenant), now, None)
        if row.kind == "r":
            change = self._edge.amendment(_change(body), tenant, now)
            return Amend(tenant, row.id, replace(change, mark=(identity, row.seq)), None)
        raise InvalidInput(f"the kind {row.kind!r} is not known; this server may be older than the outbox")
