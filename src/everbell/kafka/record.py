"""Events in Kafka records: the JSON of the HTTP API, one event or an array of them.

- The record's key is the ordering key of events that name none. A key that is not text is written in hex, `0x…`.
- Headers may carry `everbell-tenant`, `everbell-id` and `traceparent`.
- `mode` says what to do: `create` (the default), `put` (create or replace) or `cancel`. Records of one partition take
  effect in their order. A record that is read again is applied again.
- A new event without an id gets one from the place of its record, so that reading the record again makes no duplicate.
- `in` counts from the record's time, so that the due time does not depend on when the record is read.

Each event of an array is accepted or refused by itself; a value that cannot be parsed is refused as a whole.

A topic may have records in the format of another product instead; `facades` knows them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct

from everbell.clock import Clock
from everbell.core.batch_item import BatchItem, ItemSpec
from everbell.core.tenant import Tenant, check_tenant_name
from everbell.edge.array_split import is_array
from everbell.edge.batch_body import ReadItem, read_batch
from everbell.edge.bodies import Body, event_bytes_max
from everbell.edge.drafting import Edge, is_trace
from everbell.edge.turns import in_turns
from everbell.errors import EverbellError, InvalidInput, TooLarge
from everbell.facades.bigben_request import EventRequest, plan, until_registered
from everbell.facades.pagerduty_task import task_item
from everbell.kafka.settings import KafkaTopic

TENANT_HEADER = "everbell-tenant"
ID_HEADER = "everbell-id"
TRACE_HEADER = "traceparent"
DEFAULT_TENANT = "default"
# How many events of an array are read before other tasks run.
_PER_TURN = 50

IncomingHeaders = Sequence[tuple[str, bytes | None]]

_parse = Body(ItemSpec).parse
_parse_request = Body(EventRequest).parse
_log = logging.getLogger("everbell.kafka")
_array = msgspec.json.Decoder(list[Raw]).decode


@lru_cache(maxsize=1)
def _elements(value: bytes) -> list[Raw]:
    """The elements of an array. Cached, because each refused element of a record looks up its own."""
    return _array(value)


class KafkaRecord(Struct, frozen=True):
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_at: int
    """The timestamp of the record; 0 if it has none."""
    key: bytes | None
    value: bytes | None
    headers: IncomingHeaders | None = None
    fault: str | None = None
    """Why the record must be refused, if that was found while it was read."""

    @property
    def place(self) -> str:
        """The unique place of the record."""
        return f"{self.topic}:{self.partition}:{self.offset}"


class Asked(Struct, frozen=True):
    """An item in a record: an event to create, replace or cancel."""

    tenant: str
    item: BatchItem
    record: KafkaRecord
    index: int | None
    """The event's index in an array."""
    may_have_ended: bool = False
    """Whether nothing is to be done, and nothing is wrong, if its event has ended."""


class PoisonRecord(Struct, frozen=True):
    """A refused record, or one refused event of it."""

    record: KafkaRecord
    reason: str
    index: int | None = None

    @property
    def value(self) -> bytes | None:
        """The refused value, unchanged."""
        value = self.record.value
        return value if value is None or self.index is None else bytes(_elements(value)[self.index])


class RecordReader:
    """Turns records into items, under the policies of their tenants."""

    def __init__(self, topics: Sequence[KafkaTopic], edge: Edge, clock: Clock, value_bytes_max: int) -> None:
        self._tenants = {topic.name: topic.tenant for topic in topics}
        self._formats = {topic.name: topic.format for topic in topics if topic.format != "everbell"}
        self._missing: str | None = None  # The tenant that the last request of BigBen waited for in vain.
        self._edge = edge
        self._now = clock.now
        self._value_bytes_max = value_bytes_max

    async def read(self, record: KafkaRecord) -> tuple[Sequence[Asked], Sequence[PoisonRecord]]:
        """The events of a record, and its refused parts."""
        value = record.value
        try:
            if record.fault is not None:
                raise InvalidInput(record.fault)
            if not value:
                raise InvalidInput("the record has no value; send an event, or an array of events, as JSON")
            if len(value) > self._value_bytes_max:
                raise TooLarge(f"the record has more than {self._value_bytes_max} bytes (max_body)")
            if record.topic in self._formats:
                return (await self._read_foreign(record, value),), ()
            tenant, event_id, trace = self._named(record) if record.headers else self._unnamed(record.topic)
            policy, now = self._edge.policy(tenant), self._now()
            now = min(record.timestamp_at, now) or now
            if is_array(value):
                read = read_batch(value, policy.limits.batch_events, event_bytes_max(policy.limits))
                batch: list[ReadItem] = await in_turns(read, _PER_TURN)
                first_id = event_id or f"kafka:{record.topic}:{record.partition}:{record.offset}"
                return await self._read_array(record, batch, policy, f"{first_id}:", trace, now)
            if len(value) > event_bytes_max(policy.limits):
                raise TooLarge(f"the record has more than {event_bytes_max(policy.limits)} bytes, and is one event")
            spec = _parse(value)
            if event_id is not None and spec.id not in (None, event_id):
                raise InvalidInput(f"differs from the header {ID_HEADER}; leave one of them out", "id")
            spec.id = spec.id or event_id
            if record.key:
                _put_key(spec, _key(record.key))
            new_id = f"kafka:{record.topic}:{record.partition}:{record.offset}"
            item = self._edge.item(spec, policy, now, trace, new_id, record.timestamp_at or None)
            return (Asked(tenant, item, record, None),), ()
        except EverbellError as wrong:
            return (), (PoisonRecord(record, str(wrong)),)
        except Exception as unforeseen:
            # The result depends on the record alone: a retry would block the partition for ever.
            _log.exception("the record at %s cannot be read", record.place)
            return (), (PoisonRecord(record, f"cannot be read: {unforeseen!r}"),)

    async def _read_foreign(self, record: KafkaRecord, value: bytes) -> Asked:
        """The item of a record in the format of another product."""
        now, produced_at = self._now(), record.timestamp_at or None
        if self._formats[record.topic] == "pagerduty":
            tenant = self._tenants[record.topic] or DEFAULT_TENANT
            item = task_item(value, self._edge, self._edge.policy(tenant), now, produced_at)
            return Asked(tenant, item, record, None, may_have_ended=True)
        request = _parse_request(value)
        if request.mode == "UPSERT" and request.tenant != self._missing:
            await until_registered(request.tenant, self._edge)
        self._missing = request.tenant  # Forgotten as soon as a request has another tenant, or is in order.
        planned = plan(request, self._edge, now, produced_at)
        self._missing = None
        return Asked(planned.tenant, planned.item, record, None, may_have_ended=request.mode == "REMOVE")

    async def _read_array(
        self,
        record: KafkaRecord,
        batch: Sequence[ReadItem],
        policy: Tenant,
        id_prefix: str,
        trace: str | None,
        now: int,
    ) -> tuple[list[Asked], list[PoisonRecord]]:
        asked: list[Asked] = []
        poison: list[PoisonRecord] = []
        key = _key(record.key) if record.key else None
        for index, spec in enumerate(batch):
            if index % _PER_TURN == _PER_TURN - 1:
                await asyncio.sleep(0)
            if isinstance(spec, InvalidInput):
                poison.append(PoisonRecord(record, str(spec), index))
                continue
            try:
                if key is not None:
                    _put_key(spec, key)
                new_id, produced_at = f"{id_prefix}{index}", record.timestamp_at or None
                item = self._edge.item(spec, policy, now, trace, new_id, produced_at)
                asked.append(Asked(policy.name, item, record, index))
            except InvalidInput as wrong:
                poison.append(PoisonRecord(record, str(wrong), index))
        return asked, poison

    def _unnamed(self, topic: str) -> tuple[str, None, None]:
        return self._tenants.get(topic) or DEFAULT_TENANT, None, None

    def _named(self, record: KafkaRecord) -> tuple[str, str | None, str | None]:
        """The tenant, the id and the trace in the headers."""
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


def _put_key(spec: ItemSpec, key: str) -> None:
    """The record's key is that of an event without one. A cancel has none, unless the key is a part of the identity."""
    if spec.key is None and (spec.mode != "cancel" or spec.at is not None):
        spec.key = key


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
