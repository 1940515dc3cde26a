"""The calls on many events, on ordering keys, and the forecast, as methods of both clients; see `operation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from msgspec import Raw, Struct

from everbell.client.answers import (
    BlockedKeysPage,
    Cancelled,
    EventView,
    LoadForecast,
    OrderingKeyLine,
    Redriven,
    Rescheduled,
)
from everbell.client.call import Call, decoded
from everbell.client.event_calls import view_of
from everbell.client.event_json import DurationLike, InstantLike, encode_event, encode_json
from everbell.client.operation import Calls, operation
from everbell.client.paths import events_path, quoted, tenant_path
from everbell.client.queries import Choice, selection, with_query
from everbell.core.dead_view import DeadGroupsView

PAGE_EVENTS_MAX = 1_000
LONG_S = 590.0
"""How long a request on all matching events may take."""


class BulkCalls(Calls):
    """Operations on many events, on ordering keys, and the forecast."""

    @operation
    def cancel_matching(self, **chosen: Unpack[Choice]) -> Call[int]:
        """Cancel all events that match and are neither finished nor dead, and return their number."""
        query = selection(**chosen)
        return Call("DELETE", with_query(events_path(self.tenant), query), _count, repeatable=True, wait_s=LONG_S)

    @operation
    def cancel_page(
        self,
        *,
        limit: int = PAGE_EVENTS_MAX,
        cursor: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[Cancelled]:
        """Cancel at most `limit` events that match. Follow the cursor until there is none."""
        query = selection(**chosen, limit=limit, cursor=cursor)
        return Call("DELETE", with_query(events_path(self.tenant), query), _cancelled, repeatable=True)

    @operation
    def discard_dead(
        self,
        *,
        limit: int = PAGE_EVENTS_MAX,
        cursor: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[Cancelled]:
        """Cancel at most `limit` dead events that match. Follow the cursor until there is none."""
        query = selection(**chosen, limit=limit, cursor=cursor)
        return Call("DELETE", with_query(f"{tenant_path(self.tenant)}/dead", query), _cancelled, repeatable=True)

    @operation
    def reschedule_matching(
        self,
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        by: str | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[Rescheduled]:
        """Reschedule all events that match, up to 100,000: `at` a time, `in_` a duration, or `by` a duration later.

        With `by`, a lost answer raises `Unreachable`, because a retry would move them again; see `reschedule_many`.
        """
        query = selection(**chosen)
        body = encode_event({"at": at, "in": in_, "by": by})
        path = with_query(events_path(self.tenant), query)
        return Call("PATCH", path, _rescheduled, body, repeatable=by is None, wait_s=LONG_S)

    @operation
    def reschedule_many(
        self,
        events: Sequence[tuple[str, int | None]],
        *,
        at: InstantLike | None = None,
        in_: DurationLike | None = None,
        by: str | None = None,
    ) -> Call[Rescheduled]:
        """Reschedule up to 1,000 events, each named by its id and the version that it must have, None for any.

        If every event has a version, a lost answer leads to a retry, which skips the events that have moved already.
        """
        named = [{"id": name} if version is None else {"id": name, "version": version} for name, version in events]
        body = encode_event({"at": at, "in": in_, "by": by, "events": named})
        repeatable = by is None or all(version is not None for _, version in events)
        return Call("PATCH", events_path(self.tenant), _rescheduled, body, repeatable=repeatable)

    @operation
    def redrive(self, ids: Sequence[str], *, rate: float | None = None) -> Call[Redriven]:
        """Give these dead events a new set of attempts, at once or at a `rate` per second."""
        return _redrive(self.tenant, {"ids": list(ids), **selection(rate=rate)})

    @operation
    def redrive_all(
        self,
        *,
        rate: float | None = None,
        **chosen: Unpack[Choice],
    ) -> Call[Redriven]:
        """Give all dead events that match a new set of attempts, at once or at a `rate` per second."""
        return _redrive(self.tenant, {"all": True, **selection(**chosen, rate=rate)})

    @operation
    def look_at_key(self, key: str) -> Call[OrderingKeyLine]:
        """The head of an ordering key, and how many events wait behind it."""
        return Call("GET", _key_path(self.tenant, key), _line, repeatable=True)

    @operation
    def blocked_keys(self, *, limit: int = 100) -> Call[BlockedKeysPage]:
        """The ordering keys that are blocked by their head, up to 1,000 of them."""
        path = with_query(f"{tenant_path(self.tenant)}/keys", {"limit": limit})
        return Call("GET", path, _blocked_keys, repeatable=True)

    @operation
    def dead_groups(self, **chosen: Unpack[Choice]) -> Call[DeadGroupsView]:
        """Dead events by target and reason, the largest group first."""
        path = with_query(f"{tenant_path(self.tenant)}/dead/groups", selection(**chosen))
        return Call("GET", path, _dead_groups, repeatable=True, wait_s=60.0)

    @operation
    def drop_head(self, key: str, *, version: int | None = None) -> Call[EventView]:
        """Cancel the head of an ordering key. Raises `NotFound` when no event of the key is due."""
        return Call("DELETE", f"{_key_path(self.tenant, key)}/head", view_of, version=version)

    @operation
    def forecast(
        self, *, per: Literal["minute", "hour"] = "minute", count: int = 60, all_tenants: bool = False
    ) -> Call[LoadForecast]:
        """How many events are due in each coming minute or hour, and how many are overdue."""
        path = "/v1/forecast" if all_tenants else f"{tenant_path(self.tenant)}/forecast"
        return Call("GET", with_query(path, {"per": per, "count": count}), _forecast, repeatable=True, wait_s=60.0)


def _key_path(tenant: str, key: str) -> str:
    return f"{tenant_path(tenant)}/keys/{quoted(key)}"


def _redrive(tenant: str, spec: dict[str, Any]) -> Call[Redriven]:
    path = f"{tenant_path(tenant)}/dead/redrive"
    return Call("POST", path, _redriven, encode_json(spec), wait_s=LONG_S)


class _RawKeyLine(Struct, frozen=True):
    key: str
    waiting: int
    more: bool = False
    head: Raw = Raw(b"null")


class _RawKeyLines(Struct, frozen=True):
    keys: Sequence[_RawKeyLine]
    more: bool = False
    unheard: Sequence[str] = ()


_cancelled = decoded(Cancelled)
_rescheduled = decoded(Rescheduled)
_redriven = decoded(Redriven)
_forecast = decoded(LoadForecast)
_line_of = decoded(_RawKeyLine)
_lines_of = decoded(_RawKeyLines)
_dead_groups = decoded(DeadGroupsView)


def _count(status: int, body: bytes) -> int:
    return _cancelled(status, body).cancelled


def _line(status: int, body: bytes) -> OrderingKeyLine:
    return _read_line(_line_of(status, body))


def _blocked_keys(status: int, body: bytes) -> BlockedKeysPage:
    found = _lines_of(status, body)
    return BlockedKeysPage([_read_line(line) for line in found.keys], found.more, found.unheard)


def _read_line(line: _RawKeyLine) -> OrderingKeyLine:
    head = None if bytes(line.head) == b"null" else view_of(200, bytes(line.head))
    return OrderingKeyLine(line.key, line.waiting, line.more, head)
