"""Many events in few requests.

Batches are bounded by number and by size. What cannot even be written as JSON is refused here, in its place among the
others, so that one bad event out of a million costs one line of the result and not the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import DecodeError, Struct
from msgspec import json as msgspec_json
from msgspec.structs import replace

from everbell.client.answers import Batch, Refusal
from everbell.client.call import Call
from everbell.client.event_json import encode_event
from everbell.client.paths import events_path
from everbell.client.problems import problem_error
from everbell.errors import InvalidInput

BATCH_EVENTS = 1_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""A server takes bodies of 16 MiB; a smaller batch is stored sooner."""

_NONE_ACCEPTED = 422


def schedule_batches(
    tenant: str,
    events: Iterable[Mapping[str, Any]],
    *,
    batch: int = BATCH_EVENTS,
    idempotency_key: str | None = None,
) -> Iterator[Call[Batch] | Batch]:
    """Schedule many events, each a dict of the arguments of `schedule`; tells for each its id, or why it was refused.

    An event that is refused harms no other. A batch in which every event has an `id` of your own is repeated when its
    answer was lost; otherwise that raises `Unreachable`, and what became of that one batch is unknown. With an
    `idempotency_key` every batch is repeated, and so may be the whole call, with the same events in the same order.
    """
    filling = _Filling(0, idempotency_key)
    for index, event in enumerate(events):
        try:
            line = encode_event(event)
        except InvalidInput as error:
            filling.refuse(index, error.as_value())
        else:
            if filling.size_bytes and filling.size_bytes + len(line) > BATCH_BYTES_MAX:
                yield filling.batch(tenant)
                filling = _Filling(index, idempotency_key)
            filling.add(index, line, event.get("id") is not None)
        if filling.count >= batch:
            yield filling.batch(tenant)
            filling = _Filling(index + 1, idempotency_key)
    if filling.count:
        yield filling.batch(tenant)


class _Filling:
    """A batch that is being filled; `first` is the index of its first event."""

    def __init__(self, first: int, once_key: str | None) -> None:
        self._first = first
        self._once_key = None if once_key is None else f"{once_key}/{first}"
        self._lines: list[bytes] = []
        self._indexes: list[int] = []
        self._refused: list[Refusal] = []
        self._repeatable = True
        self.size_bytes = 0

    @property
    def count(self) -> int:
        return len(self._lines) + len(self._refused)

    def add(self, index: int, line: bytes, has_id: bool) -> None:
        self._lines.append(line)
        self._indexes.append(index)
        self._repeatable &= has_id
        self.size_bytes += len(line)

    def refuse(self, index: int, error: InvalidInput) -> None:
        self._refused.append(Refusal(index, error.status, error.title, error.reason, error.field))

    def batch(self, tenant: str) -> Call[Batch] | Batch:
        """The call that stores it; when there is nothing to store, its result."""
        if not self._lines:
            return Batch([None] * self.count, self._refused)
        return Call(
            "POST",
            f"{events_path(tenant)}/batch",
            self._parse,
            b"\n".join(self._lines),
            "application/x-ndjson",
            once_key=self._once_key,
            repeatable=self._repeatable or self._once_key is not None,
            also=(_NONE_ACCEPTED,),
        )

    def _parse(self, status: int, body: bytes) -> Batch:
        try:
            answer = _decoder.decode(body)
        except DecodeError:
            if status == _NONE_ACCEPTED:
                raise problem_error(status, {}, body) from None
            raise
        ids: list[str | None] = [None] * self.count
        for index, event_id in zip(self._indexes, answer.ids, strict=True):
            ids[index - self._first] = event_id
        refused = [replace(refusal, index=self._indexes[refusal.index]) for refusal in answer.errors]
        return Batch(ids, sorted(self._refused + refused, key=lambda refusal: refusal.index))


class _Answer(Struct, frozen=True):
    ids: list[str | None]
    errors: list[Refusal]


_decoder = msgspec_json.Decoder(_Answer)
