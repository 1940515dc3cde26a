"""Runs a server from its settings, and returns its exit code."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from everbell.clock import SystemClock
from everbell.errors import InvalidInput
from everbell.logs.url import open_log
from everbell.node.file_limits import raise_file_limit
from everbell.node.node import BROKEN_EXIT, Node, announce
from everbell.node.process import collect_rarely, switch_soon
from everbell.node.settings import Settings
from everbell.node.tenant_tables import SettingsError
from everbell.stores.url import open_store

if TYPE_CHECKING:
    from everbell.kafka.service import KafkaService
    from everbell.outbox.service import OutboxService
    from everbell.tracing import Tracing

_log = logging.getLogger("everbell.server")


def serve(settings: Settings) -> int:
    """Run a server until a signal stops it. Returns the exit code."""
    switch_soon()
    raise_file_limit()  # Before the store is opened: it uses a part of the limit.
    # Data, logs, backups and the ready file are for the owner only: they contain payloads and secrets.
    os.umask(0o077)

    async def main() -> int:
        store = open_store(
            settings.store,
            partitions=settings.partitions,
            reserve_bytes=settings.reserve_disk_bytes,
            relaxed=settings.tenants.is_relaxed,
            level=settings.tenants.level,
        )
        log = await open_log(settings.log)
        collect_rarely()
        return await Node(settings, store, log, tracing, kafka, outbox).run(partial(announce, settings))

    kafka = _kafka(settings) if settings.kafka.clusters else None
    outbox = _outbox(settings) if settings.outboxes else None
    tracing = _tracing(settings) if settings.otlp else None
    try:
        code = uvloop.run(main())
    finally:
        if tracing is not None:
            tracing.close()
    if code == BROKEN_EXIT:
        _log.critical(
            "ended because the store failed; acknowledged events are in its log: repair the disk and start again"
        )
    return code


def _kafka(settings: Settings) -> KafkaService:
    try:
        from everbell.kafka.service import KafkaService
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "confluent_kafka":
            raise
        raise SettingsError("--kafka-brokers: Kafka needs its library: pip install 'everbell[kafka]'") from missing
    try:
        return KafkaService(settings.kafka, SystemClock())
    except InvalidInput as wrong:
        raise SettingsError(wrong.reason) from wrong


def _outbox(settings: Settings) -> OutboxService:
    try:
        from everbell.outbox.service import OutboxService
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "asyncpg":
            raise
        raise SettingsError("--outbox: PostgreSQL needs its driver: pip install 'everbell[postgres]'") from missing
    return OutboxService(settings.outboxes, SystemClock())


def _tracing(settings: Settings) -> Tracing:
    try:
        from everbell.tracing import open_tracing
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise SettingsError("--otlp: traces need OpenTelemetry: pip install 'everbell[otel]'") from missing
    return open_tracing(settings.otlp, settings.cluster.name)
