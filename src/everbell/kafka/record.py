"""What a record of Kafka asks for: the JSON of the HTTP API, one event or an array of them.

- The record's key is the ordering key of events that name none. A key that is no text is written as a number, `0x…`.
- Headers may carry `everbell-tenant`, `everbell-id` and `traceparent`.
- An event without an id gets one from the place of its record, so that reading it again makes nothing twice.
- `in` counts from the record's time, not from when it was read: who reads it hours later, or again, gets the same time.

Each event of an array stands or falls by itself; what cannot be told into events falls as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from everbell.clock import Clock
from everbell.core.spec import Draft, EventSpec
from everbell.core.tenant import Tenant, check_tenant_name
from everbell.errors import EverbellError, InvalidInput, TooLarge
from everbell.kafka.settings import KafkaTopic
from everbell.server.batch_body import Read, read_batch
from everbell.server.bodies import Body
from everbell.server.edge import Edge, is_trace

TENANT_HEADER = "everbell-tenant"
ID_HEADER = "everbell-id"
TRACE_HEADER = "traceparent"
DEFAULT_TENANT = "default"

Headers = Sequence[tuple[str, bytes | None]]

_parse = Body(EventSpec).parse
_log = logging.getLogger("everbell.kafka")
_array = msgspec.json.Decoder(list[Raw]).decode


@lru_cache(maxsize=1)
def _elements(value: bytes) -> list[Raw]:
    """The elements of an array. Those that are refused come one after the other, and each asks for them."""
    return _array(value)


class Record(Struct, frozen=True):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_at: int
    """When it was written, as the record says; 0 where it does not."""
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    fault: str | None = None
    """Why it cannot be taken, where that was found out while it was read."""

    @property
    def place(self) -> str:
        """Its place, which no other record ever has."""
        return f"{self.topic}:{self.partition}:{self.offset}"


class Asked(Struct, frozen=True):
    """An event that a record asks for."""

    tenant: str
    draft: Draft
    record: Record
    index: int | None
    """Its place in an array."""


class Poison(Struct, frozen=True):
    """A record that cannot be taken, or one event of it."""

    record: Record
    reason: str
    index: int | None = None

    @property
    def value(self) -> bytes | None:
        """What could not be taken, as it came."""
        value = self.record.value
        return value if value is None or self.index is None else bytes(_elements(value)[self.index])


class RecordReader:
    """Turns records into drafts, under the policies of their tenants."""

    def __init__(self, topics: Sequence[KafkaTopic], edge: Edge, clock: Clock, value_bytes_max: int) -> None:
        self._tenants = {topic.name: topic.tenant for topic in topics}
        self._edge = edge
        self._now = clock.now
        self._value_bytes_max = value_bytes_max

    def read(self, record: Record) -> tuple[Sequence[Asked], Sequence[Poison]]:
        """The events of a record, and what of it cannot be taken."""
        value = record.value
        try:
            if record.fault is not None:
                raise InvalidInput(record.fault)
            if not value:
                raise InvalidInput("the record has no value; send an event, or an array of events, as JSON")
            if len(value) > self._value_bytes_max:
                raise TooLarge(f"the record has more than {self._value_bytes_max} bytes (max_body)")
            tenant, event_id, trace = self._named(record) if record.headers else self._unnamed(record.topic)
            policy, now = self._edge.policy(tenant), self._now()
            now = min(record.timestamp_at, now) or now
            if value[:1] == b"[" or value.lstrip()[:1] == b"[":
                batch = read_batch(value, policy.limits.batch_events)
                first_id = event_id or f"kafka:{record.topic}:{record.partition}:{record.offset}"
                return self._read_array(record, batch, policy, f"{first_id}:", trace, now)
            spec = _parse(value)
            if spec.id is None:
                spec.id = event_id or f"kafka:{record.topic}:{record.partition}:{record.offset}"
            elif event_id is not None and spec.id != event_id:
                raise InvalidInput(f"differs from the header {ID_HEADER}; leave one of them out", "id")
            if spec.key is None and record.key:
                spec.key = _key(record.key)
            return (Asked(tenant, self._edge.checked(spec, policy, now, trace), record, None),), ()
        except EverbellError as wrong:
            return (), (Poison(record, str(wrong)),)
        except Exception as unforeseen:
            # What comes of a record follows from it alone: tried again, it would stop its partition for good.
            _log.exception("the record at %s cannot be read", record.place)
            return (), (Poison(record, f"cannot be read: {unforeseen!r}"),)

    def _read_array(
        self, record: Record, batch: Read, policy: Tenant, id_prefix: str, trace: str | None, now: int
    ) -> tuple[list[Asked], list[Poison]]:
        asked: list[Asked] = []
        poison: list[Poison] = []
        key = _key(record.key) if record.key else None
        for index, spec in enumerate(batch):
            if isinstance(spec, InvalidInput):
                poison.append(Poison(record, str(spec), index))
                continue
            try:
                if spec.id is None:
                    spec.id = f"{id_prefix}{index}"
                if spec.key is None:
                    spec.key = key
                asked.append(Asked(policy.name, self._edge.checked(spec, policy, now, trace), record, index))
            except InvalidInput as wrong:
                poison.append(Poison(record, str(wrong), index))
        return asked, poison

    def _unnamed(self, topic: str) -> tuple[str, None, None]:
        return self._tenants.get(topic) or DEFAULT_TENANT, None, None

    def _named(self, record: Record) -> tuple[str, str | None, str | None]:
        """The tenant, the id and the trace that the headers name."""
        headers = dict(record.headers or ())
        trace = _text(headers, TRACE_HEADER)
        if trace is not None and not is_trace(trace):
            trace = None
        return self._tenant(record.topic, headers), _text(headers, ID_HEADER), trace

    def _tenant(self, topic: str, headers: dict[str, bytes | None]) -> str:
        own, named = self._tenants.get(topic), _text(headers, TENANT_HEADER)
        if named is None:
            return own or DEFAULT_TENANT
        if own is not None and named != own:
            raise InvalidInput(f"the topic {topic!r} is for the events of {own!r}, not of {named[:64]!r}", "tenant")
        return check_tenant_name(named)


def _text(headers: dict[str, bytes | None], name: str) -> str | None:
    if (value := headers.get(name)) is None:
        return None
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        raise InvalidInput(f"the header {name} is not UTF-8") from None


def _key(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text and text.isprintable() else f"0x{key.hex()}"
