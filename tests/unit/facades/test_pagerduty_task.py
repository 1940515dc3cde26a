"""Tasks of PagerDuty's scheduler: their names."""

from __future__ import annotations

import pytest

from everbell.core.tenant import Tenant
from everbell.core.time import parse_instant
from everbell.errors import InvalidInput
from everbell.facades.pagerduty_task import task_id, task_key

TASKS = Tenant("pd", identity="key+at+id")


def test_a_name_leads_to_the_event_and_back() -> None:
    text = "TaskKey(2026-11-18T10:17:00.500Z,queue%1,unique)"
    event_id = task_id(text, TASKS)
    assert event_id == "queue%251,2026-11-18T10:17:00.500Z,unique"
    assert task_key(parse_instant("2026-11-18T10:17:00.500Z"), "queue%1", event_id) == text


@pytest.mark.parametrize("text", ["", "key", "TaskKey()", "TaskKey(a,b)", "TaskKey(soon,b,c)", "TaskKey(,b,c)"])
def test_text_that_names_no_task(text: str) -> None:
    with pytest.raises(InvalidInput):
        task_id(text, TASKS)
