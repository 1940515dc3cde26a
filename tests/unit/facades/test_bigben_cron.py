"""Crons of BigBen: four dialects in one."""

from __future__ import annotations

import pytest

from everbell.errors import InvalidInput
from everbell.facades.bigben_cron import CronSpec, CronType, cron_event, native_expression


@pytest.mark.parametrize(
    ("cron_type", "written", "native"),
    [
        ("UNIX", "*/5 0 1 1 0", "*/5 0 1 1 0"),
        ("CRON4J", "* * * * *", "* * * * *"),
        ("SPRING", "0 0 12 * * 1", "0 0 12 * * 1"),
        ("QUARTZ", "0 0 12 ? * 1", "0 0 12 * * 0"),
        ("QUARTZ", "0 0 12 ? * 2-6 *", "0 0 12 * * 1-5"),
        ("QUARTZ", "0 0 12 ? * 6#3", "0 0 12 * * 5#3"),
        ("QUARTZ", "0 0 12 ? * 7L", "0 0 12 * * 6L"),
        ("QUARTZ", "0 0 12 ? * MON,1/2", "0 0 12 * * MON,0/2"),
    ],
)
def test_expressions(cron_type: CronType, written: str, native: str) -> None:
    assert native_expression(written, cron_type) == native


@pytest.mark.parametrize(
    ("cron_type", "written"),
    [("UNIX", "0 0 0 * * *"), ("QUARTZ", "* * * * *"), ("QUARTZ", "0 0 0 * * ? 2040"), ("SPRING", "* * * * *")],
)
def test_expressions_that_mean_nothing_in_their_dialect(cron_type: CronType, written: str) -> None:
    with pytest.raises(InvalidInput):
        native_expression(written, cron_type)


def test_a_cron_needs_an_id() -> None:
    with pytest.raises(InvalidInput):
        cron_event(CronSpec(" ", "* * * * *", "UNIX", "t"))
