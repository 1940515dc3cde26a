"""Files of events: which lines are read, and the result of each line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from everbell.cli.event_lines import EventLines, SettledLine
from everbell.client.answers import BatchResult, Rejection
from everbell.errors import InvalidInput


def lines_of(text: str, **defaults: Any) -> EventLines:
    return EventLines(io.BytesIO(text.encode()), None, defaults)


def test_options_fill_in_missing_fields() -> None:
    text = '{"payload": 1}\n{"payload": 2, "to": "queue:b", "at": "x"}\n'
    events = list(lines_of(text, to="queue:a", **{"in": "5s"}))
    assert events == [
        {"payload": 1, "to": "queue:a", "in": "5s"},
        {"payload": 2, "to": "queue:b", "at": "x"},
    ]


def test_every_line_is_accounted_for_in_order() -> None:
    lines = lines_of('{}\n\nnonsense\n{}\n[1]\n{}\n"end"')
    assert len(list(lines)) == 3
    first = list(lines.settle(BatchResult(["a", None], [Rejection(1, 422, "", "is odd")], ["created", "error"])))
    assert [(line.line, line.id) for line in first] == [(1, "a"), (3, None), (4, None), (5, None)]
    assert "is not JSON" in (first[1].reason or "")
    assert first[2].reason == "is odd"
    assert "is not an event" in (first[3].reason or "")
    assert list(lines.settle(BatchResult(["b"], (), ["created"]))) == [
        SettledLine(6, "b", None, "created"),
        SettledLine(7, None, first[3].reason),
    ]
    assert lines.settled == 7


def test_lines_that_are_no_events_are_told_even_when_nothing_else_is() -> None:
    lines = lines_of("x\ny\n")
    assert list(lines) == []
    assert [line.line for line in lines.settle(BatchResult([]))] == [1, 2]


def test_a_file_is_read_as_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    path.write_text("{}\n" * 3)
    with EventLines.open(str(path), {}) as lines:
        assert lines.size_bytes == 9
        next(iter(lines))
        assert lines.read_bytes == 3


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"), EventLines.open(str(tmp_path / "x"), {}):
        pass
