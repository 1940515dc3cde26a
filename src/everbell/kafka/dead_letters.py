"""Dead letters: refused records go unchanged to a topic of their own, with the reason in a header.

A dead letter is written before its record counts as read. If that is impossible (the topic is missing or not
writable), the log names the record's place and the reason, and reading goes on: the record itself is still in its
topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from everbell.core.retry import Outcome
from everbell.kafka.errors import TOO_LARGE, outcome_of
from everbell.kafka.outlet import Outlet, what_is_wrong
from everbell.kafka.record import PoisonRecord
from everbell.kafka.settings import KafkaCluster

_log = logging.getLogger("everbell.kafka")

TIMEOUT_MS = 10_000
_PAUSE_S = 1.0
_TOGETHER = 1_000  # The limit of dead letters in flight: one record may contain thousands of refused events.
_REASON_LENGTH_MAX = 1_000


class DeadLetters:
    """Writes dead letters, and retries while brokers are away."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._outlet = Outlet(cluster, TIMEOUT_MS)
        self.unwritten = 0
        """Records for which no dead letter could be written."""

    async def send_all(self, poisons: Sequence[PoisonRecord]) -> None:
        """Returns when each record has a dead letter or can never have one."""
        for start in range(0, len(poisons), _TOGETHER):
            await asyncio.gather(*map(self._send, poisons[start : start + _TOGETHER]))

    async def close(self) -> None:
        """Drop the records in flight: they are read again."""
        await self._outlet.close()

    async def _send(self, poison: PoisonRecord) -> None:
        _log.warning("a record is refused: %s at %s", poison.reason, poison.record.place)
        value = poison.value
        while (error := await self._try(poison, value)) is not None:
            outcome = outcome_of(error, self._topic, TIMEOUT_MS)
            if error.code() in TOO_LARGE and value is not None:
                value = None  # The headers say where the record is.
            elif outcome.result == "refused":
                self._note_unwritten(poison, outcome)
                return
            else:
                _log.warning("a dead letter cannot be written to %s, trying again: %s", self._topic, outcome.reason)
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, poison: PoisonRecord, value: bytes | None) -> KafkaError | None:
        told: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

        def report(error: KafkaError | None) -> None:
            self._outlet.answered(1)
            if not told.done():
                told.set_result(error)

        try:
            self._outlet.send(self._topic, value, poison.record.key, letter_headers(poison), report)
        except KafkaException as wrong:
            return what_is_wrong(wrong)
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        return await told

    def _note_unwritten(self, poison: PoisonRecord, outcome: Outcome) -> None:
        self.unwritten += 1
        _log.error(
            "no dead letter could be written for the record at %s, which was refused (%s): %s",
            poison.record.place,
            poison.reason,
            outcome.reason,
        )


def letter_headers(poison: PoisonRecord) -> list[tuple[str, bytes | None]]:
    """The headers of the record, and those about its refusal."""
    record = poison.record
    told = {
        "everbell-dead-reason": poison.reason[:_REASON_LENGTH_MAX],
        "everbell-dead-topic": record.topic,
        "everbell-dead-partition": str(record.partition),
        "everbell-dead-offset": str(record.offset),
    }
    if poison.index is not None:
        told["everbell-dead-index"] = str(poison.index)
    return [*(record.headers or ()), *((name, text.encode()) for name, text in told.items())]
