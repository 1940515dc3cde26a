"""Everbell between two topics; the outcome of each record is reported to the checker.

Records are identified by their payload. Records of one key are written in order and have to come out in order; the
checker judges the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.machine import PATIENCE_S, now_ms, until
from tests.checker import Asked, Checker, Seen
from tests.services.kafka import KafkaServer
from tests.services.topics import Got, Topics

# Short timeouts: a production cluster takes tens of seconds for these steps.
PROPERTIES = """\
session.timeout.ms=1500
heartbeat.interval.ms=300
topic.metadata.refresh.interval.ms=500
"""
RETRY = {"max_attempts": 100, "backoff": "50ms", "max_backoff": "500ms"}


class KafkaStage:
    """A topic for input, a topic for output and a topic for refused records."""

    def __init__(self, folder: Path, server: KafkaServer, partitions: int = 4) -> None:
        self.topics = topics = Topics(server)
        self.source, self.sink, self.refused = topics.new(partitions), topics.new(partitions), topics.new()
        self.group = server.fresh_name()
        self.checker = Checker()
        self.written = 0
        self._properties = folder / "kafka.properties"
        self._properties.write_text(PROPERTIES)
        self.out_options = ["--kafka-brokers", server.address, "--kafka-properties", str(self._properties)]
        """Options of a server that only writes."""
        self.options = [*self.out_options, "--kafka-topics", self.source, "--kafka-group", self.group]
        self.options += ["--kafka-dead-letters", self.refused]

    def be_patient(self) -> None:
        """Let the group keep members that are slow on a busy machine, so that each record is read once."""
        with self._properties.open("a") as properties:
            properties.write("session.timeout.ms=60000\n")

    def write(self, count: int, keys: int = 0, lead_ms: int = 0) -> None:
        """Write `count` more records, due after `lead_ms`, spread over `keys` keys."""
        for _ in range(count):
            index, self.written = self.written, self.written + 1
            key = f"key-{index % keys}" if keys else None
            now = now_ms()
            event = {"to": f"kafka://{self.sink}", "in": lead_ms / 1_000, "payload": index, "retry": RETRY}
            asked = Asked(str(index), now + lead_ms, str(index).encode(), None, index, acknowledged_at=now)
            self.checker.ask(asked)
            self.topics.send(self.source, json.dumps(event).encode(), key=key and key.encode(), timestamp=now)
        self.topics.flush()

    def until_shared(self, *partitions: int) -> None:
        """Wait until the members of the group have these numbers of partitions; without numbers, until all are gone."""
        members = sorted(partitions)
        until(lambda: self.topics.members(self.group) == members, lambda: f"shared: {self.topics.members(self.group)}")

    def judge(self, restarts: int = 0, *, is_disturbed: bool = False) -> list[Got]:
        """Wait until all records came out, and judge. Disturbed brokers may have lost an acknowledgement."""
        got = self.topics.read_until(self.sink, lambda so_far: len({one.value for one in so_far}) >= self.written)
        for one in got:
            attempt, epoch = int(one.headers["everbell-attempt"]), int(one.headers["everbell-epoch"])
            name = one.value.decode()
            seen = Seen(name, 1, attempt, epoch, one.value, one.at, one.at, accepted=True, answer_lost=is_disturbed)
            self.checker.see(seen)
        self.checker.restarts = restarts
        violations = self.checker.violations()
        assert not violations, violations[:10]
        self.assert_in_order(got)
        return got

    def until_read(self, besides: int = 0) -> None:
        """Wait until the group has committed all written records, plus `besides` others."""
        until(
            lambda: self.topics.committed(self.source, self.group) >= self.written + besides,
            lambda: f"{self.written} records read: {self.topics.committed(self.source, self.group)}",
            PATIENCE_S,
        )

    @staticmethod
    def assert_in_order(got: Sequence[Got]) -> None:
        """The first deliveries of each key are in order; all records of a key are in one partition."""
        by_key: dict[bytes, dict[int, Got]] = {}
        for one in sorted(got, key=lambda one: one.offset):
            if one.key is not None:
                by_key.setdefault(one.key, {}).setdefault(int(one.value), one)
        for key, first in by_key.items():
            story = [
                (number, one.headers["everbell-epoch"], one.headers["everbell-attempt"], one.at, one.headers["ce_id"])
                for number, one in first.items()
            ]
            assert list(first) == sorted(first), f"{key!r} (number, epoch, attempt, at): {story}"
