"""The counts of a node's processes only grow."""

from __future__ import annotations

from everbell.core.process_report import ProcessReport
from everbell.node.process_reports import ProcessReports
from tests.unit.node.test_metrics import values


def test_the_counts_of_a_gateway_outlive_it() -> None:
    reports = ProcessReports()
    reports.add(0, ProcessReport(5, 1, 1_500))
    reports.add(1, ProcessReport(2, 0, 0))
    reports.add(0, ProcessReport(6, 1, 1_500))
    reports.forget(0)
    reports.add(0, ProcessReport(1, 1, 2_000))
    samples = values("\n".join(reports.metrics(ProcessReport(100, 3, 4_000))))
    assert samples["everbell_unauthorized_total"] == 109
    assert samples['everbell_loop_blocks_total{process="engine"}'] == 3
    assert samples['everbell_loop_blocks_total{process="gateway"}'] == 2
    assert samples['everbell_loop_blocked_seconds_total{process="engine"}'] == 4
    assert samples['everbell_loop_blocked_seconds_total{process="gateway"}'] == 3.5
