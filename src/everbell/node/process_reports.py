"""The counts of a node's processes, for its metrics: refused requests, and blocked event loops.

A gateway reports its totals, so a report that is lost or repeated changes nothing. When a gateway ends, its last report
stays in the sum: the metrics only grow.
"""

from __future__ import annotations

from functools import reduce

from everbell.core.exposition import labelled, metric
from everbell.core.process_report import ProcessReport


class ProcessReports:
    """The last report of each gateway, and the sum of those that have ended."""

    def __init__(self) -> None:
        self._ended = ProcessReport()
        self._latest: dict[int, ProcessReport] = {}

    def add(self, gateway: int, report: ProcessReport) -> None:
        """Take the report of a gateway, in place of its last one."""
        self._latest[gateway] = report

    def forget(self, gateway: int) -> None:
        """Keep the counts of a gateway that has ended: its successor counts from zero."""
        self._ended = self._ended.plus(self._latest.pop(gateway, ProcessReport()))

    def metrics(self, engine: ProcessReport) -> list[str]:
        """The samples of the engine's process, which reports `engine`, and of all gateways together."""
        gateways = reduce(ProcessReport.plus, self._latest.values(), self._ended)
        return [
            *metric(
                "everbell_unauthorized_total",
                "counter",
                "Requests without a valid access key since the start.",
                engine.unauthorized + gateways.unauthorized,
            ),
            *labelled(
                "everbell_loop_blocks_total",
                "counter",
                "How often the event loop of a process was blocked for more than a second.",
                "process",
                {"engine": engine.blocks, "gateway": gateways.blocks},
            ),
            *labelled(
                "everbell_loop_blocked_seconds_total",
                "counter",
                "The sum of the times that the event loop of a process was blocked for more than a second.",
                "process",
                {"engine": engine.blocked_ms / 1_000, "gateway": gateways.blocked_ms / 1_000},
            ),
        ]
