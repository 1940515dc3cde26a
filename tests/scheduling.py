"""Schedule events in tests that need the stored events afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.core.event import Event
from everbell.core.ids import place_in
from everbell.core.request import Ask
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft, event_of
from everbell.engine.requests import Schedule
from everbell.engine.seen import Seen
from everbell.errors import EverbellError
from everbell.stores.port import PreparedRows, Store


async def schedule_seen(
    ask: Ask, tenant: str, drafts: Sequence[Draft], store: Store | None = None
) -> list[Seen | EverbellError]:
    """For each draft, the event that it became, or the reason for its refusal.

    An event is returned as the store has it. Without a store, or if the event has already ended, it is built from its
    draft and its id.
    """
    results = await ask(Schedule(tenant, drafts))
    return [
        await made(result, draft, tenant, store) if isinstance(result, str) else result
        for result, draft in zip(results, drafts, strict=True)
    ]


async def made(event_id: str, draft: Draft, tenant: str, store: Store | None = None) -> Seen:
    """A new event."""
    event = None if store is None else await store.get(tenant, event_id)
    if not isinstance(event, Event):
        _, sequence, partition = place_in(event_id) or (0, 0, 0)
        event = event_of(draft, event_id, tenant, partition, sequence)
    return Seen.of(event, "scheduled", created=True)


def drafts_of(request: Schedule) -> Sequence[Draft]:
    """The events of a request as drafts."""
    body = request.body
    assert not isinstance(body, PreparedRows), "prepared rows contain no drafts"
    return body.drafts() if isinstance(body, SimpleBatch) else body
