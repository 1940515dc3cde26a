"""The answers of a server, as values.

Fields that a newer server adds are ignored; fields that may be absent have defaults. Times are aware datetimes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, json, to_builtins

from everbell.client.problems import ProblemBody, error_of
from everbell.core.batch_item import ItemStatus
from everbell.core.delivery_form import DeliveryForm
from everbell.core.event import Status
from everbell.core.kill import KillKind
from everbell.core.pause import What
from everbell.core.retry import Result
from everbell.core.why import Why
from everbell.errors import EverbellError

if TYPE_CHECKING:
    from everbell.client.call import Call


class Answered(Struct, frozen=True):
    """An answer that can be passed on: `to_dict()` for every program, and directly for FastAPI and pydantic."""

    def to_dict(self) -> dict[str, Any]:
        """The answer as values of JSON: times as text, bytes as base64."""
        fields: dict[str, Any] = to_builtins(self)
        return fields

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        serialization = core_schema.plain_serializer_function_ser_schema(lambda answer: answer.to_dict())
        return core_schema.is_instance_schema(cls, serialization=serialization)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        components = json.schema_components((cls,), ref_template="{name}")[1]
        schema: Any = _inlined(components[cls.__name__], components)
        return schema


def _inlined(schema: Any, components: Mapping[str, Any]) -> Any:
    """A schema without references. No answer contains itself."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(components[schema["$ref"]], components)
        return {name: _inlined(part, components) for name, part in schema.items()}
    return [_inlined(part, components) for part in schema] if isinstance(schema, list) else schema


class Scheduled(Answered, frozen=True, kw_only=True):
    """An event that is stored, now or by an earlier request with the same id."""

    id: str
    at: datetime
    status: Status
    version: int = 1
    created: bool = True
    """Whether this request made the event. False: an earlier request with the same id did."""


class KeyView(Struct, frozen=True, kw_only=True):
    """An access key, without its secret."""

    id: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: datetime
    note: str = ""
    revoked_at: datetime | None = None


class NewKey(KeyView, frozen=True, kw_only=True):
    """An access key that was just made. Keep its text: it cannot be shown again."""

    key: str


class TenantLine(Struct, frozen=True, kw_only=True):
    """A tenant among others."""

    name: str
    version: int
    """Of its policy in the log; 0 where it has none there."""
    pending: int = 0
    dead: int = 0
    pauses: int = 0
    """How many things of it are paused."""


class Paused(Struct, frozen=True, kw_only=True):
    """A pause: its object, its beginning, the access key that made it, and the reason."""

    what: What
    since: datetime
    by: str
    """The id of an access key, or `nobody` where none was needed."""
    name: str | None = None
    note: str | None = None
    until: datetime | None = None
    unheard: tuple[str, ...] = ()
    """Of a new pause: the nodes that did not confirm it."""


class Killed(Struct, frozen=True, kw_only=True):
    """A kill: its object, its beginning, the access key that made it, the reason, and the events that it ended."""

    what: KillKind
    since: datetime
    by: str
    """The id of an access key, or `nobody` where none was needed."""
    name: str | None = None
    note: str | None = None
    ended: int = 0
    """How many events it has ended, since the nodes started."""
    searching: bool = False
    """Whether a node still searches for events to end."""
    unheard: tuple[str, ...] = ()
    """Of a new kill: the nodes that did not confirm it."""


class PolicyView(Struct, frozen=True, kw_only=True):
    """The policy of a tenant, as it is in force."""

    name: str
    version: int
    """Of its document in the log; 0 where it has none."""
    policy: dict[str, Any]
    sources: dict[str, str]
    """By field: `document`, `settings` or `default`."""
    pauses: tuple[Paused, ...] = ()
    """Its pauses."""


class AttemptView(Struct, frozen=True, kw_only=True):
    """One try at delivering an occurrence."""

    number: int
    started_at: datetime
    duration_ms: int
    result: Result
    reason: str | None = None
    code: int | None = None


class EventView(Answered, frozen=True, kw_only=True):
    """An event as it is now. Payload and headers are kept until it ends."""

    id: str
    tenant: str
    at: datetime
    """The nominal due time of this occurrence."""
    status: Status
    version: int
    to: str = ""
    """This and all fields below are missing in the answer to a change if the access key lacks the scope `read`."""
    created_at: datetime | None = None
    occurrence: int = 1
    attempt_count: int = 0
    key: str | None = None
    tags: tuple[str, ...] | None = None
    headers: Mapping[str, str] | None = None
    payload: Any = None
    """Decoded JSON, or bytes where there is a `content_type`. A number too large to read is infinite."""
    content_type: str | None = None
    retry: Mapping[str, Any] | None = None
    repeat: Mapping[str, Any] | None = None
    expires: str | None = None
    traceparent: str | None = None
    attempts: tuple[AttemptView, ...] = ()
    """The latest ones, oldest first."""
    next_attempt_at: datetime | None = None
    """Where it is not the due time."""
    finished_at: datetime | None = None
    reason: str | None = None
    """The reason why it is dead, or was not delivered."""
    counters: Mapping[str, Any] | None = None
    """Of an event that repeats: how many were fired, missed and skipped, and for which reasons."""
    paused: Mapping[str, Any] | None = None
    """Since when it is paused, and the note."""
    repeat_of: str | None = None
    """The recurring event that this is an occurrence of, where occurrences may overlap."""
    delivery: DeliveryForm | None = None
    """The form of its deliveries, if it has its own."""
    why: Why | None = None
    """Of one event that was read by its id: why it has not been delivered yet."""
    replicas: Mapping[str, Any] | None = None
    """Of an event with durability replicas: how many nodes shall hold it (`count`), which nodes do (`held_by`), and
    which of them is next in line (`next`)."""
    produced_at: datetime | None = None
    """The timestamp of the Kafka record that it came in."""


class EventPage(Struct, frozen=True):
    """Some of the events that match, and how to get the following ones."""

    events: Sequence[EventView]
    cursor: str | None
    rest: Call[EventPage] | None


class Rejection(Struct, frozen=True):
    """The reason why one event of many was rejected; `index` counts from the first of all."""

    index: int
    status: int
    title: str = ""
    detail: str | None = None
    field: str | None = None

    @property
    def error(self) -> EverbellError:
        """The error that scheduling this event alone would have raised."""
        return error_of(ProblemBody(title=self.title, detail=self.detail, field=self.field), self.status)


class BatchResult(Struct, frozen=True):
    """The outcome of items that were sent together: the id and the status of each. Those in `refused` have the id None
    and the status `error`; `unknown` is a cancel that found no event.
    """

    ids: Sequence[str | None]
    refused: Sequence[Rejection] = ()
    statuses: Sequence[ItemStatus | Literal["error"]] = ()

    @property
    def accepted(self) -> int:
        """How many were not refused."""
        return len(self.ids) - len(self.refused)


class TrialOutcome(Struct, frozen=True):
    """The outcome of an attempt that is not recorded."""

    result: Result
    reason: str | None = None
    code: int | None = None


class NotRedriven(Struct, frozen=True):
    """The reason why one event was skipped."""

    id: str
    status: int
    title: str
    detail: str


class Redriven(Struct, frozen=True):
    """How many dead events got a new set of attempts, and why others did not."""

    redriven: int
    errors: Sequence[NotRedriven] = ()


class Cancelled(Struct, frozen=True):
    """How many events of one page were cancelled; it goes on while there is a cursor."""

    cancelled: int
    cursor: str | None = None


class Rescheduled(Struct, frozen=True):
    """How many events were rescheduled and skipped, and the reasons for some."""

    rescheduled: int
    skipped: int = 0
    errors: Sequence[NotRedriven] = ()


class OrderingKeyLine(Struct, frozen=True):
    """An ordering key: its head, if an event of it is due, and how many events wait behind it."""

    key: str
    waiting: int
    more: bool = False
    """Whether there are more than were counted."""
    head: EventView | None = None


class BlockedKeysPage(Answered, frozen=True):
    """Ordering keys that are blocked by their head."""

    keys: Sequence[OrderingKeyLine]
    more: bool = False
    """Whether there are more such keys."""
    unheard: Sequence[str] = ()
    """The nodes that did not answer, so that keys may be missing."""


class Span(Struct, frozen=True):
    """A minute or an hour, and how many events are due in it."""

    at: datetime
    due: int


class LoadForecast(Struct, frozen=True, kw_only=True):
    """How many events are due, and how many are overdue."""

    per: Literal["minute", "hour"]
    spans: Sequence[Span]
    overdue: int = 0
    oldest_overdue: str | None = None
    """For how long the oldest of them has been due."""
    known_until: datetime | None = None
    """From here on there may be more: that was too much to count."""


class Exported(Struct, frozen=True):
    """One page of an export: a JSON object for each event, how many were left out, and how to get the next page."""

    lines: Sequence[bytes]
    left_out: int = 0
    cursor: str | None = None


class Settled(Struct, frozen=True):
    """How many leases were settled or extended, and which ones were not held any more."""

    done: int
    lost: Sequence[str] = ()


def together(batches: Iterable[BatchResult]) -> BatchResult:
    """Batches that followed each other, as one."""
    ids: list[str | None] = []
    refused: list[Rejection] = []
    statuses: list[ItemStatus | Literal["error"]] = []
    for batch in batches:
        ids.extend(batch.ids)
        refused.extend(batch.refused)
        statuses.extend(batch.statuses)
    return BatchResult(ids, refused, statuses)
