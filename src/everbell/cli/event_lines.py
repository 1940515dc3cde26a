"""A file of events, one JSON object a line, read as it is needed and reported line by line.

The server numbers the events of a request, and the user needs the numbers of the lines. They differ, because blank
lines are skipped and invalid lines are not sent. So each line that was read waits here until its result is known.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import DecodeError, Struct
from msgspec import json as msgspec_json

from everbell.client.answers import BatchResult
from everbell.errors import InvalidInput


class SettledLine(Struct, frozen=True):
    """A line, the id of its event and what was done with it, or the reason why nothing was."""

    line: int
    id: str | None = None
    reason: str | None = None
    status: str = "error"


class EventLines:
    """Iterating yields the events, with defaults filled in; `settle` returns the results of the yielded events."""

    def __init__(self, file: BinaryIO, size_bytes: int | None, defaults: Mapping[str, Any]) -> None:
        self._file = file
        self._defaults = defaults
        self._waiting: deque[SettledLine | int] = deque()
        self._given = 0
        self.size_bytes = size_bytes
        self.read_bytes = 0
        self.settled = 0

    @classmethod
    @contextmanager
    def open(cls, path: str | None, defaults: Mapping[str, Any]) -> Iterator[EventLines]:
        """The lines of a file, or of standard input. Raises `InvalidInput` when it cannot be read."""
        if path is None:
            yield cls(sys.stdin.buffer, None, defaults)
            return
        with ExitStack() as stack:
            try:
                file = stack.enter_context(Path(path).open("rb"))
            except OSError as error:
                raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
            yield cls(file, os.fstat(file.fileno()).st_size, defaults)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, text in enumerate(self._file, 1):
            self.read_bytes += len(text)
            if not text.strip():
                continue
            event = self._event(number, text)
            if event is not None:
                self._waiting.append(number)
                yield event

    def _event(self, number: int, text: bytes) -> dict[str, Any] | None:
        try:
            event = msgspec_json.decode(text)
        except DecodeError as error:
            self._waiting.append(SettledLine(number, reason=f"is not JSON: {error}"))
            return None
        if not isinstance(event, dict):
            self._waiting.append(SettledLine(number, reason='is not an event: write {"payload": …, "in": "20m"}'))
            return None
        missing = set() if event.get("mode") == "cancel" else self._defaults.keys() - event.keys()
        if "in" in event or "at" in event:
            missing -= {"in", "at"}
        return {**event, **{name: self._defaults[name] for name in missing}}

    def settle(self, batch: BatchResult) -> Iterator[SettledLine]:
        """The results of the next lines: those of the events that were yielded next.

        For an empty batch, only the invalid lines at the end.
        """
        reasons = {refusal.index: str(refusal.error) for refusal in batch.refused}
        for event_id, status in zip(batch.ids, batch.statuses, strict=True):
            yield from self._settled_before()
            number = self._waiting.popleft()
            assert isinstance(number, int)
            reason = reasons.get(self._given)
            self._given += 1
            self.settled = number
            yield SettledLine(number, event_id, reason, status)
        yield from self._settled_before()

    def _settled_before(self) -> Iterator[SettledLine]:
        while self._waiting and isinstance(self._waiting[0], SettledLine):
            line = self._waiting.popleft()
            assert isinstance(line, SettledLine)
            self.settled = line.line
            yield line
