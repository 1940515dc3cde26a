"""The items of a batch: each creates an event, puts one in the place of another, or cancels one.

Items of one id take effect in their order. The functions below work out the effect of a run of such items on
the event that is stored under the id, on the record of an ended event, or where the id is new. They change nothing
themselves: the engine stores the result with one change, for any number of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from everbell.core.amendment import check_overlap
from everbell.core.event import Event, Record, is_repeated
from everbell.core.ids import PREFIX, is_made
from everbell.core.recurrence import ring_at
from everbell.core.spec import Draft, EventSpec, event_of
from everbell.core.tenant import Tenant
from everbell.core.time import format_instant, parse_instant
from everbell.errors import BeingDelivered, Conflict, EverbellError, InvalidInput

Mode = Literal["create", "put", "cancel"]
ItemStatus = Literal["created", "replaced", "cancelled", "unknown"]


class ItemSpec(EventSpec, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An item as a user writes it: an event with a mode."""

    mode: Annotated[Mode, Meta(description="put creates or replaces the event of this id; cancel ends it")] = "create"


def identify(spec: EventSpec, tenant: Tenant) -> None:
    """Give an event the id that the tenant's `identity` says. An event without an id stays without one.

    With `key+at+id` the id is made of all three, as `KEY,TIME,ID`. A comma in the key is escaped, and the time has a
    fixed form, so different events have different ids.
    """
    if tenant.identity == "id" or spec.id is None:
        return
    if spec.key is None or spec.at is None:
        raise InvalidInput("the tenant's identity is key+at+id, so an event with an id needs a key and at", "id")
    key = spec.key.replace("%", "%25").replace(",", "%2C")
    spec.id = f"{key},{format_instant(parse_instant(spec.at))},{spec.id}"


class BatchItem(Struct, frozen=True, array_like=True, gc=False):
    """A checked item. Only `create` may come without an id, and only `cancel` without a draft."""

    mode: Mode
    id: str | None
    draft: Draft | None = None


class ItemDone(Struct, frozen=True, array_like=True, gc=False):
    """The result of an item. `unknown`: there was no event to cancel."""

    id: str
    status: ItemStatus


ItemResult = ItemDone | EverbellError


class Changed(Struct, frozen=True):
    """The effect of items on a stored event."""

    results: Sequence[ItemResult]
    after: Event
    is_cancelled: bool


class Made(Struct, frozen=True):
    """The effect of items where no event is stored. `draft` is the event to create, if any. Items beyond `results` wait
    until it exists.
    """

    results: Sequence[ItemResult]
    draft: Draft | None


def on_event(event: Event, items: Sequence[BatchItem], *, is_in_flight: bool, reuses_ids: bool = False) -> Changed:
    """The effect of items on an unfinished event. `reuses_ids` is the tenant's policy."""
    results: list[ItemResult] = []
    after, is_cancelled = event, False
    for item in items:
        try:
            if item.mode == "cancel":
                is_cancelled = True
                results.append(ItemDone(event.id, "cancelled"))
                continue
            if is_cancelled:
                raise Conflict("the event is already cancelled")
            assert item.draft is not None
            if item.mode == "put":
                if is_in_flight:
                    raise BeingDelivered("the event is being delivered at this moment; try again when that is over")
                after = put_over(after, item.draft, reuses_ids=reuses_ids)
                results.append(ItemDone(event.id, "replaced"))
            else:
                check_repeated(after, item.draft)
                results.append(ItemDone(event.id, "created"))
        except Conflict as refused:
            results.append(refused.as_value())
    return Changed(results, after, is_cancelled)


def on_record(record: Record, items: Sequence[BatchItem], *, reuses_ids: bool = False) -> list[ItemResult]:
    """The results of items for an event that has ended. Nothing changes. A repeated cancel is no error.

    Where the tenant reuses ids, the results end before the first put that `renews`.
    """
    results: list[ItemResult] = []
    for item in items:
        try:
            if item.mode == "create":
                assert item.draft is not None
                check_repeated(record, item.draft)
                results.append(ItemDone(record.id, "created"))
            elif item.mode == "cancel" and record.status == "cancelled":
                results.append(ItemDone(record.id, "cancelled"))
            elif item.mode == "put" and reuses_ids:
                assert item.draft is not None
                if renews(record, item.draft):
                    break
                results.append(ItemDone(record.id, "replaced"))
            else:
                raise Conflict(f"the event is already {record.status}")
        except Conflict as refused:
            results.append(refused.as_value())
    return results


def on_nothing(event_id: str, items: Sequence[BatchItem]) -> Made:
    """The effect of items where no event is stored under their id."""
    results: list[ItemResult] = []
    draft: Draft | None = None
    for item in items:
        if draft is None and item.mode == "cancel":
            results.append(ItemDone(event_id, "unknown"))
        elif draft is None and is_made(event_id):
            results.append(InvalidInput(f"ids that begin with {PREFIX} are made by Everbell; choose another", "id"))
        elif draft is None:
            draft = item.draft
            results.append(ItemDone(event_id, "created"))
        elif item.mode == "put" and item.draft is not None and item.draft.key == draft.key:
            draft = item.draft
            results.append(ItemDone(event_id, "replaced"))
        else:
            break
    return Made(results, draft)


def renews(record: Record, draft: Draft) -> bool:
    """Whether a put begins a new event under the id of one that has ended, where the tenant reuses ids.

    A put that repeats the request of a delivered event does not: its sender did not hear the answer.
    """
    is_same = record.due_at == draft.due_at and is_repeated(record, event_of(draft, record.id, record.tenant))
    return record.status != "delivered" or not is_same


def put_over(event: Event, draft: Draft, *, reuses_ids: bool = False) -> Event:
    """The event with a draft in its place. Raises `Conflict`."""
    check_key(event, draft)
    if not reuses_ids:
        check_alive(event)
    due_at, rule = draft.due_at, draft.repeat
    after = replace(
        event,
        state="scheduled",
        due_at=due_at,
        run_at=due_at if rule is None else ring_at(rule, event.id, 1, due_at),
        to=draft.to,
        payload=draft.payload,
        version=event.version + 1,
        occurrence=1,
        attempt_count=0,
        content_type=draft.content_type,
        headers=draft.headers,
        tags=draft.tags,
        retry=draft.retry,
        repeat=rule,
        expires_ms=draft.expires_ms,
        reason=None,
        course=None,
        produced_at=draft.produced_at,
    )
    check_overlap(after)
    return after


def check_alive(event: Event) -> None:
    """Refuse to change a dead event."""
    if event.state == "dead":
        raise Conflict("the event is dead; redrive it, or cancel it and schedule another")


def check_key(event: Event, draft: Draft) -> None:
    """Refuse a draft with another key than the event has."""
    if event.key != draft.key:
        raise Conflict("an event's key cannot be changed; cancel it and schedule another")


def check_repeated(existing: Event | Record, draft: Draft) -> None:
    """Refuse a draft if its id belongs to an event that another request made."""
    if is_repeated(existing, event_of(draft, existing.id, existing.tenant)):
        return
    if isinstance(existing, Record):
        ended = f"the id {existing.id!r} belongs to another event that is {existing.status} already"
        raise Conflict(f"{ended}, and stays taken for the tenant's retention; choose another id")
    raise Conflict(f"the id {existing.id!r} is taken by another event; use PUT to replace it")
