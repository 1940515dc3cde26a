"""The JSON forms of an event and of a change, and their checks.

`EventSpec` is what is decoded (types, unknown fields and lengths are checked by the decoder, in C), `draft` checks
the rest and yields a `Draft`: everything about an event but its id, sequence and partition, which only its owner can
give. Nothing that is not a Draft gets past the edge.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from everbell.core.amendment import Amendment
from everbell.core.delivery_form import FORM_HEADER, Form
from everbell.core.event import Event, Repeat
from everbell.core.ids import PREFIX
from everbell.core.json_limits import check_json
from everbell.core.recurrence import ring_at
from everbell.core.repeat_spec import RepeatSpec, first_of, repeat_of
from everbell.core.replicas.ids import REPLICA_PREFIX
from everbell.core.replication import ReplicasSpec, Replication, chosen_replication
from everbell.core.retry import UNLIMITED, RetryPolicy
from everbell.core.target import group_of
from everbell.core.tenant import BEYOND_HORIZON, Limits, Tenant
from everbell.core.time import Duration, check_instant, parse_duration, parse_instant
from everbell.errors import InvalidInput, TooLarge

NAME_BYTES_MAX = 512
NOTE_LENGTH_MAX = 1_000

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*", re.ASCII)
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(;[\x20-\x7e]*)?", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,128})?", re.ASCII)
_BRACE, _BRACKET = b"{["  # As numbers: `int in bytes` is ten times as fast as `bytes in bytes`.
_OWN_HEADERS = frozenset(
    "host content-length content-type transfer-encoding connection keep-alive te trailer upgrade expect "
    "traceparent".split()
)
_OWN_PREFIXES = ("ce-", "webhook-", "everbell-", "proxy-")

Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Tag = Annotated[str, Meta(min_length=1, max_length=64)]


class RetrySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How to try again."""

    max_attempts: (
        Annotated[int, Meta(ge=1, le=1000, description="attempts in all, the first one included; null: no limit")]
        | None
    ) = 10
    backoff: Annotated[Duration, Meta(description="the first pause; it doubles each time")] = "2s"
    max_backoff: Annotated[Duration, Meta(description="the longest pause")] = "10m"


class PlainSpec(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The minimal event. Most events of a batch have no other fields, and take two thirds of the time in this form."""

    payload: Annotated[Raw, Meta(description="any JSON, delivered as it came")] = Raw(b"null")
    to: Annotated[str, Meta(description="https://…, http://…, kafka://topic, queue:name or handler:name")] | None = None
    at: Annotated[str, Meta(description="RFC 3339 time with an offset")] | None = None


class EventSpec(PlainSpec, forbid_unknown_fields=True, kw_only=True, gc=False):
    """An event as a user writes it. One of `at` and `in`; none is needed where `repeat` says when."""

    in_: Annotated[Duration, Meta(description="from now: 250ms, 90s, 1h30m, PT20M or a number of seconds")] | None = (
        msgspec.field(default=None, name="in")
    )
    id: Annotated[Name, Meta(description="your own id, unique in the tenant; makes a repeated request safe")] | None = (
        None
    )
    key: Annotated[Name, Meta(description="events of one key go one at a time, in order")] | None = None
    headers: Annotated[dict[str, str], Meta(description="sent along with the delivery")] | None = None
    tags: Annotated[list[Tag], Meta(description="to find it by")] | None = None
    retry: RetrySpec | None = None
    repeat: RepeatSpec | None = None
    expires: Annotated[Duration, Meta(description="not delivered any more this long after its due time")] | None = None
    content_type: Annotated[str, Meta(max_length=256, description="of payload_base64")] | None = None
    payload_base64: Annotated[str, Meta(description="bytes instead of JSON; needs content_type")] | None = None
    traceparent: Annotated[str, Meta(description="W3C trace context to link the delivery to")] | None = None
    delivery: Annotated[Form, Meta(description="the form of its deliveries, instead of the tenant's mode")] | None = (
        None
    )
    durability: (
        Annotated[str, Meta(description="store, or replicas: in the memory of several nodes; else the tenant's")] | None
    ) = None
    replicas: Annotated[ReplicasSpec, Meta(description="goes with durability replicas")] | None = None


class ChangeSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """A change to an event: what is given is changed, what is left out stays. `null` takes an optional part away."""

    payload: Raw | UnsetType = UNSET
    to: str | UnsetType = UNSET
    at: str | UnsetType = UNSET
    in_: Duration | UnsetType = msgspec.field(default=UNSET, name="in")
    by: Annotated[str, Meta(description="so much later than it is due, or earlier: 2h, -30m")] | UnsetType = UNSET
    headers: dict[str, str] | None | UnsetType = UNSET
    tags: list[Tag] | None | UnsetType = UNSET
    retry: RetrySpec | None | UnsetType = UNSET
    repeat: RepeatSpec | None | UnsetType = UNSET
    expires: Duration | None | UnsetType = UNSET
    paused: Annotated[bool, Meta(description="pause or resume an event that repeats")] | UnsetType = UNSET
    note: (
        Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="why it is paused or resumed")] | None | UnsetType
    ) = UNSET


class Draft(Struct, frozen=True, array_like=True, gc=False):
    """A checked event without a place yet. Gateways send drafts to the owner."""

    due_at: int
    to: str
    payload: bytes
    id: str | None = None
    key: str | None = None
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    repeat: Repeat | None = None
    expires_ms: int | None = None
    traceparent: str | None = None
    replicas: Replication | None = None
    """None: the event goes to the store."""
    produced_at: int | None = None


def draft(spec: EventSpec, tenant: Tenant, now: int, check_target: Callable[[str], object] = group_of) -> Draft:
    """Check a decoded event against the tenant's limits. Raises `InvalidInput` naming the field."""
    # This runs for every incoming event, so an absent field costs a test and no call.
    limits = tenant.limits
    repeat = None if spec.repeat is None else repeat_of(spec.repeat)
    at, to = spec.at, spec.to or tenant.to
    if at is not None and spec.in_ is None and repeat is None and limits.horizon_ms is None:
        due_at = parse_instant(at)
    else:
        due_at = _due(at, spec.in_, now, limits, repeat)
    if tenant.past == "reject":
        check_past(due_at, tenant, now)
    if to is None:
        raise InvalidInput("is missing, and the tenant has no default target", "to")
    check_target(to)
    content_type = spec.content_type
    if spec.payload_base64 is None and content_type is None:
        payload = bytes(spec.payload)
        # Nearly every payload is flat and needs no check of its depth.
        inside = payload[1:]
        if _BRACE in inside or _BRACKET in inside or len(payload) > limits.payload_bytes:
            check_json(payload, limits)
    else:
        payload = _base64(spec, limits)
    event_id, key, trace = spec.id, spec.key, spec.traceparent
    if event_id is not None:
        _check_given(event_id)
    if key is not None:
        check_name(key, "key")
        if repeat is not None and repeat.overlap == "allow":
            raise InvalidInput("allow goes without a key: events of a key go one at a time", "repeat.overlap")
    if trace is not None and not _TRACEPARENT.fullmatch(trace):
        raise InvalidInput("is not a W3C traceparent", "traceparent")
    replicas = None
    if tenant.durability != "store" or spec.durability is not None or spec.replicas is not None:
        replicas = chosen_replication(spec.durability or tenant.durability, spec.replicas, tenant.replicas, key)
    headers, tags, retry, expires = spec.headers, spec.tags, spec.retry, spec.expires
    return Draft(
        due_at,
        to,
        payload,
        event_id,
        key,
        content_type,
        _all_headers(spec, tenant) if headers or spec.delivery else (),
        _tags(tags, limits) if tags else (),
        None if retry is None else retry_of(retry),
        repeat,
        None if expires is None else _expires(expires),
        trace,
        replicas,
    )


def event_of(draft: Draft, event_id: str, tenant: str, partition: int = 0, sequence: int = 0, now: int = 0) -> Event:
    """The event of a draft at its place; without a place, the event as users see it."""
    return Event(
        event_id,
        tenant,
        partition,
        sequence,
        draft.due_at,
        draft.due_at if draft.repeat is None else ring_at(draft.repeat, event_id, 1, draft.due_at),
        draft.to,
        draft.payload,
        now,
        draft.key,
        "scheduled",
        1,
        1,
        0,
        (),
        draft.content_type,
        draft.headers,
        draft.tags,
        draft.retry,
        draft.repeat,
        draft.expires_ms,
        draft.traceparent,
        produced_at=draft.produced_at,
    )


def amendment_of(spec: ChangeSpec, tenant: Tenant, now: int) -> Amendment:
    """What a change sets, checked; `NO_AMENDMENT` when it changes nothing."""
    limits = tenant.limits
    change = _amended_times(spec, limits, now)
    if change.due_at is not UNSET:
        check_past(change.due_at, tenant, now)
    if spec.to is not UNSET:
        group_of(spec.to)
        change = replace(change, to=spec.to)
    if spec.payload is not UNSET:
        payload = bytes(spec.payload)
        check_json(payload, limits)
        change = replace(change, payload=payload, content_type=None)
    if spec.headers is not UNSET:
        change = replace(change, headers=checked_headers(spec.headers or {}, limits))
    if spec.tags is not UNSET:
        change = replace(change, tags=_tags(spec.tags or [], limits))
    if spec.retry is not UNSET:
        change = replace(change, retry=None if spec.retry is None else retry_of(spec.retry))
    if spec.expires is not UNSET:
        change = replace(change, expires_ms=None if spec.expires is None else _expires(spec.expires))
    if spec.paused is not UNSET:
        change = replace(change, paused=spec.paused, note=check_note(spec.note))
    elif spec.note is not UNSET:
        raise InvalidInput("goes with paused: it says why", "note")
    return change


def _amended_times(spec: ChangeSpec, limits: Limits, now: int) -> Amendment:
    at = None if spec.at is UNSET else spec.at
    in_ = None if spec.in_ is UNSET else spec.in_
    if spec.by is not UNSET:
        if at is not None or in_ is not None or spec.repeat is not UNSET:
            raise InvalidInput("give one of at, in, by and repeat", "by")
        # Only the owner of the event knows its due time, so the owner compares.
        latest_at = UNSET if limits.horizon_ms is None else now + limits.horizon_ms
        return Amendment(shift_ms=shift_of(spec.by), latest_at=latest_at)
    repeat = None if spec.repeat is UNSET or spec.repeat is None else repeat_of(spec.repeat)
    change = Amendment() if spec.repeat is UNSET else Amendment(repeat=repeat)
    # A new expression gives the next occurrence its time; a new interval goes on from the time there is.
    if at is not None or in_ is not None or (repeat is not None and repeat.cron is not None):
        return replace(change, due_at=_due(at, in_, now, limits, repeat))
    if repeat is not None:
        first_of(repeat, now, now)
    return change


def shift_of(by: str) -> int:
    """How many milliseconds later, or (below 0) earlier."""
    shift_ms = -parse_duration(by[1:], "by") if by.startswith("-") else parse_duration(by, "by")
    if shift_ms == 0:
        raise InvalidInput("must be longer than nothing", "by")
    return shift_ms


def check_note(note: str | None | UnsetType) -> str | None:
    """The note of a pause, if any. Refuses control characters."""
    if note is UNSET or note is None:
        return None
    if _CONTROL.search(note):
        raise InvalidInput("must not contain control characters", "note")
    return note


def check_name(name: str, field: str) -> None:
    """Refuse an id or key that is too long or has control characters."""
    if len(name) * 4 > NAME_BYTES_MAX and len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidInput(f"is longer than {NAME_BYTES_MAX} bytes", field)
    if not name.isascii() or not name.isprintable():
        if _CONTROL.search(name):
            raise InvalidInput("must not contain control characters", field)
        if field == "id" and not name.isprintable():
            raise InvalidInput("must be printable", field)


def _check_given(event_id: str) -> None:
    """Refuse a client-given id that looks like one that Everbell made."""
    check_name(event_id, "id")
    for prefix in (PREFIX, REPLICA_PREFIX):
        if event_id.startswith(prefix):
            raise InvalidInput(f"may not begin with {prefix}: such ids are made by Everbell", "id")


def retry_of(spec: RetrySpec) -> RetryPolicy:
    """A retry policy as the engine uses it."""
    backoff = parse_duration(spec.backoff, "retry.backoff")
    longest = parse_duration(spec.max_backoff, "retry.max_backoff")
    if longest < backoff:
        raise InvalidInput("must not be shorter than backoff", "retry.max_backoff")
    return RetryPolicy(UNLIMITED if spec.max_attempts is None else spec.max_attempts, backoff, longest)


def _due(at: str | None, in_: Duration | None, now: int, limits: Limits, repeat: Repeat | None) -> int:
    due_at: int | None
    if at is not None:
        if in_ is not None:
            raise InvalidInput("give either at or in, not both", "in")
        due_at = parse_instant(at)
    elif in_ is not None:
        due_at = check_instant(now + parse_duration(in_), "in")
    elif repeat is not None:
        due_at = None
    else:
        raise InvalidInput("give at (a time) or in (a duration from now)", "at")
    if repeat is not None:
        due_at = first_of(repeat, due_at, now)
    assert due_at is not None, "what does not repeat has been given a time"
    if limits.horizon_ms is not None and due_at - now > limits.horizon_ms:
        field = "at" if at is not None else "in" if in_ is not None else "repeat"
        raise InvalidInput(BEYOND_HORIZON, field)
    return due_at


def _base64(spec: EventSpec, limits: Limits) -> bytes:
    if spec.payload_base64 is None:
        raise InvalidInput("goes with payload_base64; a JSON payload is application/json", "content_type")
    if bytes(spec.payload) != b"null":
        raise InvalidInput("give either payload or payload_base64, not both", "payload_base64")
    if spec.content_type is None or not _CONTENT_TYPE.fullmatch(spec.content_type):
        raise InvalidInput("payload_base64 needs a content type such as image/png", "content_type")
    try:
        payload = a2b_base64(spec.payload_base64, strict_mode=True)
    except (Error, ValueError):
        raise InvalidInput("is not base64", "payload_base64") from None
    if len(payload) > limits.payload_bytes:
        raise TooLarge(f"has {len(payload)} bytes; the tenant's limit is {limits.payload_bytes}", "payload_base64")
    return payload


def _all_headers(spec: EventSpec, tenant: Tenant) -> tuple[tuple[str, str], ...]:
    """The event's own headers, and its form of delivery among them."""
    headers = checked_headers(spec.headers or {}, tenant.limits)
    if spec.delivery is None:
        return headers
    if tenant.batch > 1:
        raise InvalidInput("is for events that travel alone; the tenant's batch is above 1", "delivery")
    return (*headers, (FORM_HEADER, spec.delivery))


def check_past(due_at: int, tenant: Tenant, now: int) -> None:
    """Refuse a time in the past, if the tenant's policy says so."""
    if tenant.past == "reject" and due_at < now - tenant.past_grace_ms:
        raise InvalidInput("lies in the past, and the tenant's policy is to reject that", "at")


def checked_headers(headers: dict[str, str], limits: Limits) -> tuple[tuple[str, str], ...]:
    """Headers that a delivery may carry."""
    if len(headers) > limits.headers:
        raise TooLarge(f"has {len(headers)} entries; the limit is {limits.headers}", "headers")
    checked = []
    for name, value in headers.items():
        lower = name.lower()
        field = f"headers.{name[:64]}"
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidInput(f"{name[:64]!r} is not a header name", "headers")
        if lower in _OWN_HEADERS or lower.startswith(_OWN_PREFIXES):
            raise InvalidInput("is set by Everbell itself", field)
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidInput("has characters that a header cannot carry (printable ASCII only)", field)
        checked.append((lower, value.strip()))
    if sum(len(name) + len(value) for name, value in checked) > limits.header_bytes:
        raise TooLarge(f"are larger than {limits.header_bytes} bytes together", "headers")
    if len({name for name, _ in checked}) != len(checked):
        raise InvalidInput("names the same header twice", "headers")
    return tuple(checked)


def _tags(tags: list[str], limits: Limits) -> tuple[str, ...]:
    if len(tags) > limits.tags:
        raise TooLarge(f"has {len(tags)} entries; the limit is {limits.tags}", "tags")
    for tag in tags:
        check_name(tag, "tags")
    return tuple(dict.fromkeys(tags))


def _expires(value: Duration) -> int:
    expires = parse_duration(value, "expires")
    if expires == 0:
        raise InvalidInput("must be longer than nothing", "expires")
    return expires
