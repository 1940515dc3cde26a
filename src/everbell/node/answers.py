"""The requests about this process, which its gateways ask: health, metrics, backups, keys, policies, reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from everbell.core.collector_report import CollectorReport
from everbell.core.health import Health
from everbell.core.request import Ask, Handlers
from everbell.engine.request_routes import NodeRequest
from everbell.engine.requests import (
    CountTags,
    DropKey,
    DropTenantPolicy,
    FollowKeys,
    FollowPolicies,
    GetHealth,
    GetMetrics,
    MakeBackup,
    PutKey,
    PutTenantPolicy,
    ReportCollecting,
    ReportProcess,
    ReportReading,
    RevokeKey,
    UntilStopping,
)
from everbell.kafka.readers import Readers
from everbell.links.port import ChangingKeys, ChangingPolicies
from everbell.node.process_reports import ProcessReports
from everbell.node.tag_counts import TagCounts

# How long a gateway waits for a change of keys or policies before it asks again.
FOLLOW_S = 10.0


class NodeAnswers:
    """Answers the requests of gateways: those about this process here, all others by `ask`."""

    def __init__(
        self,
        ask: Ask,
        keys: ChangingKeys,
        policies: ChangingPolicies,
        backup: Callable[[], Awaitable[str]],
        metrics: Callable[[], str],
        health: Callable[[], Health],
        stopping: Callable[[], Awaitable[object]],
        readers: Readers | None,
        collected: Callable[[int, CollectorReport], None] | None = None,
    ) -> None:
        """`stopping` returns when the node begins to stop."""
        self._metrics = metrics
        self._health = health
        self._stopping = stopping
        self._readers = readers
        self._collected = collected
        self.tags = TagCounts()
        self.processes = ProcessReports()
        self.handlers = Handlers(
            MakeBackup.by(lambda request: backup()),
            GetMetrics.by(self._get_metrics),
            GetHealth.by(self._get_health),
            FollowKeys.by(lambda request: keys.changed(request.known, FOLLOW_S)),
            PutKey.by(lambda request: keys.put(request.key)),
            RevokeKey.by(lambda request: keys.revoke(request.id, request.revoked_at)),
            DropKey.by(lambda request: keys.drop(request.id)),
            FollowPolicies.by(lambda request: policies.changed(request.known, FOLLOW_S)),
            PutTenantPolicy.by(lambda request: policies.put(request.tenant, request.document, request.expected)),
            DropTenantPolicy.by(lambda request: policies.drop(request.tenant, request.expected)),
            UntilStopping.by(self._until_stopping),
            ReportReading.by(self._report_reading),
            ReportCollecting.by(self._report_collecting),
            ReportProcess.by(self._report_process),
            CountTags.by(self._count_tags),
            complete=NodeRequest,
            otherwise=ask,
        )
        self.ask: Ask = self.handlers.ask

    async def _get_metrics(self, request: GetMetrics) -> str:
        return self._metrics()

    async def _get_health(self, request: GetHealth) -> Health:
        return self._health()

    async def _until_stopping(self, request: UntilStopping) -> None:
        await self._stopping()

    async def _report_reading(self, request: ReportReading) -> None:
        assert self._readers is not None, "only gateways that read Kafka report"
        self._readers.add(request.gateway, request.report)

    async def _report_collecting(self, request: ReportCollecting) -> None:
        assert self._collected is not None, "only gateways that collect an outbox report"
        self._collected(request.outbox, request.report)

    async def _report_process(self, request: ReportProcess) -> None:
        self.processes.add(request.gateway, request.report)

    async def _count_tags(self, request: CountTags) -> None:
        self.tags.add(request.tags)
