"""Many events in few requests.

Batches are bounded by number and by size. An event that cannot be written as JSON is rejected here, in its place among
the others, so that one bad event out of a million costs one line of the result and not the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import DecodeError, Struct
from msgspec import json as msgspec_json
from msgspec.structs import replace

from everbell.client.answers import BatchResult, Rejection, together
from everbell.client.call import Call
from everbell.client.event_json import encode_event
from everbell.client.operation import Calls, in_parts, joined
from everbell.client.paths import events_path
from everbell.client.problems import problem_error
from everbell.core.batch_item import ItemStatus
from everbell.errors import InvalidInput

BATCH_EVENTS = 1_000
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""A server takes bodies of 16 MiB; a smaller batch is stored sooner."""

_NONE_ACCEPTED = 422
_UNNAMED = "The server rejected the event and named other errors only; send it in a smaller batch to see why"


class BatchCalls(Calls):
    """Operations that schedule many events."""

    def _batches(
        self,
        events: Iterable[Mapping[str, Any]],
        *,
        batch: int = BATCH_EVENTS,
        idempotency_key: str | None = None,
    ) -> Iterator[Call[BatchResult] | BatchResult]:
        """Schedule many events, each a dict of the arguments of `schedule`. The result has the id or error of each.

        A dict with `mode` does something else: `put` creates or replaces the event of its id, and `cancel` ends it.
        Dicts of one id take effect in their order.

        A rejected event does not affect the others. If an answer is lost, a batch in which every event has an `id` of
        your own is retried. Any other batch raises `Unreachable`, and its outcome is unknown. With an `idempotency_key`
        every batch is retried, and you may repeat the whole call with the same events in the same order.
        """
        filling = _Filling(0, idempotency_key)
        for index, event in enumerate(events):
            try:
                line = encode_event(event)
            except InvalidInput as error:
                filling.refuse(index, error.as_value())
            else:
                if filling.size_bytes and filling.size_bytes + len(line) > BATCH_BYTES_MAX:
                    yield filling.batch(self.tenant)
                    filling = _Filling(index, idempotency_key)
                filling.add(index, line, event.get("id") is not None)
            if filling.count >= batch:
                yield filling.batch(self.tenant)
                filling = _Filling(index + 1, idempotency_key)
        if filling.count:
            yield filling.batch(self.tenant)

    schedule_batches = in_parts(_batches)
    schedule_many = joined(_batches, together)


class _Filling:
    """A batch that is being filled; `first` is the index of its first event."""

    def __init__(self, first: int, idempotency_key: str | None) -> None:
        self._first = first
        self._idempotency_key = None if idempotency_key is None else f"{idempotency_key}/{first}"
        self._lines: list[bytes] = []
        self._indexes: list[int] = []
        self._refused: list[Rejection] = []
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
        self._refused.append(Rejection(index, error.status, error.title, error.reason, error.field))

    def batch(self, tenant: str) -> Call[BatchResult] | BatchResult:
        """The call that stores the batch; if there is nothing to store, its result."""
        if not self._lines:
            return BatchResult([None] * self.count, self._refused, ["error"] * self.count)
        return Call(
            "POST",
            f"{events_path(tenant)}/batch",
            self._parse,
            b"\n".join(self._lines),
            "application/x-ndjson",
            idempotency_key=self._idempotency_key,
            repeatable=self._repeatable or self._idempotency_key is not None,
            also=(_NONE_ACCEPTED,),
        )

    def _parse(self, status: int, body: bytes) -> BatchResult:
        try:
            answer = _decoder.decode(body)
        except DecodeError:
            if status == _NONE_ACCEPTED:
                raise problem_error(status, {}, body) from None
            raise
        ids: list[str | None] = [None] * self.count
        statuses: list[ItemStatus | Literal["error"]] = ["error"] * self.count
        for place, (index, event_id) in enumerate(zip(self._indexes, answer.ids, strict=True)):
            ids[index - self._first] = event_id
            if event_id is not None:
                statuses[index - self._first] = answer.statuses[place] if answer.statuses else "created"
        refused = [replace(refusal, index=self._indexes[refusal.index]) for refusal in answer.errors]
        if answer.rejected > len(refused):  # The server names the first thousand.
            named = {refusal.index for refusal in answer.errors}
            others = (place for place, event_id in enumerate(answer.ids) if event_id is None and place not in named)
            refused += [Rejection(self._indexes[place], _NONE_ACCEPTED, _UNNAMED) for place in others]
        return BatchResult(ids, sorted(self._refused + refused, key=lambda refusal: refusal.index), statuses)


class _BatchAnswer(Struct, frozen=True):
    rejected: int
    ids: list[str | None]
    errors: list[Rejection]
    statuses: list[ItemStatus | Literal["error"]] = []


_decoder = msgspec_json.Decoder(_BatchAnswer)
