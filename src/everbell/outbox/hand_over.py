"""Rows on their way to the engine: events in batches, changes side by side, each id in the order of its rows.

A row ends in one of four ways. It is *made*: durable in Everbell's store. It is *late*: a change of an event that has
ended or never was. It is *refused* for good, with a reason. Or it is *held*, because the engine cannot take it at the
moment: then no later row of its tenant is handed over, and all of them stay in the outbox.

Every row may be handed over twice, after a crash or by a collector that lost its lock. That has no effect: events have
their ids, a cancelled event stays cancelled, and an event remembers the last row that moved it (`Amendment.mark`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from everbell.core.request import Ask
from everbell.core.spec import Draft
from everbell.engine.requests import Amend, Cancel, Get, Schedule
from everbell.errors import Conflict, EverbellError, InvalidInput, NotFound
from everbell.outbox.row import MADE_ID_PREFIX, AskedRow, OutboxRow, RowReader

_log = logging.getLogger("everbell.outbox")

EVENTS_MAX = 1_000
"""The limit of a batch: one group of the engine, which is stored as a whole or not at all."""
CHANGES_MAX = 64
"""The number of changes under way at a time."""


class HandedOver:
    """What became of some rows."""

    def __init__(self) -> None:
        self.events = 0
        self.changes = 0
        self.late = 0
        self.tenants: set[str] = set()
        """Tenants with rows that were made or are late."""
        self.done: list[int] = []
        """The numbers of rows that were made or are late."""
        self.refused: list[tuple[OutboxRow, str]] = []
        self.held: dict[str, tuple[int, EverbellError]] = {}
        """By tenant: the first row that has to wait, and why."""

    def hold(self, one: AskedRow, why: EverbellError) -> None:
        first, known = self.held.get(one.tenant, (one.row.seq, why))
        self.held[one.tenant] = (min(first, one.row.seq), known)

    def make(self, one: AskedRow) -> None:
        self._finish(one)
        if isinstance(one.asked, Draft):
            self.events += 1
        else:
            self.changes += 1

    def miss(self, one: AskedRow) -> None:
        self._finish(one)
        self.late += 1
        _log.info("%s came too late for %r: it has ended, or never was", _NAMES[one.row.kind], one.row.id)

    def _finish(self, one: AskedRow) -> None:
        self.done.append(one.row.seq)
        self.tenants.add(one.tenant)


_NAMES = {"c": "a cancel", "r": "a reschedule"}


class HandOver:
    """Hands rows over to the engine."""

    def __init__(self, ask: Ask, reader: RowReader) -> None:
        self._ask = ask
        self._read = reader.read

    async def take(self, rows: Sequence[OutboxRow], identity: str) -> HandedOver:
        """Hand rows over, in the order of their numbers."""
        result = HandedOver()
        wave: dict[tuple[str, str], AskedRow] = {}
        for row in rows:
            read = self._read(row, identity)
            if isinstance(read, str):
                result.refused.append((row, read))
                continue
            name = (read.tenant, row.id)
            if name in wave:  # Two rows of one event go one after the other.
                await self._take_wave(list(wave.values()), result)
                wave = {}
            wave[name] = read
        await self._take_wave(list(wave.values()), result)
        return result

    async def _take_wave(self, wave: Sequence[AskedRow], result: HandedOver) -> None:
        wave = [one for one in wave if one.tenant not in result.held]
        by_tenant: dict[str, list[AskedRow]] = {}
        changes: list[AskedRow] = []
        for one in wave:
            (by_tenant.setdefault(one.tenant, []) if isinstance(one.asked, Draft) else changes).append(one)
        await asyncio.gather(*(self._schedule(tenant, some, result) for tenant, some in by_tenant.items()))
        for some in _batched(changes, CHANGES_MAX):
            await asyncio.gather(*(self._change(one, result) for one in some if one.tenant not in result.held))

    async def _schedule(self, tenant: str, events: Sequence[AskedRow], result: HandedOver) -> None:
        for some in _batched(events, EVENTS_MAX):
            answers: Sequence[object]
            try:
                answers = await self._ask(Schedule(tenant, [_draft(one) for one in some]))
            except EverbellError as failed:
                answers = [failed.as_value()] * len(some)
            for one, answer in zip(some, answers, strict=True):
                if not isinstance(answer, EverbellError) or _is_own(one, answer):
                    result.make(one)
                elif isinstance(answer, InvalidInput | Conflict):
                    result.refused.append((one.row, str(answer)))
                else:
                    result.hold(one, answer)
            if tenant in result.held:
                return

    async def _change(self, one: AskedRow, result: HandedOver) -> None:
        assert isinstance(one.asked, Amend | Cancel)
        try:
            refusal = await self._refusal_of(one.asked)
        except NotFound:
            result.miss(one)
        except EverbellError as failed:
            result.hold(one, failed.as_value())
        else:
            if refusal is None:
                result.make(one)
            else:
                result.refused.append((one.row, refusal))

    async def _refusal_of(self, change: Amend | Cancel) -> str | None:
        """Make a change; returns why it is refused for good. Raises `NotFound` also for an event that has ended."""
        try:
            await self._ask(change)
            return None
        except (InvalidInput, Conflict) as refusal:
            if isinstance(change, Cancel) or (await self._ask(Get(change.tenant, change.id))).live is None:
                raise NotFound(str(refusal)) from None
            return str(refusal)


def _draft(one: AskedRow) -> Draft:
    assert isinstance(one.asked, Draft)
    return one.asked


def _is_own(one: AskedRow, refusal: EverbellError) -> bool:
    """Whether the event that has the id is this one, scheduled before and changed by a user since."""
    return isinstance(refusal, Conflict) and one.row.id.startswith(MADE_ID_PREFIX)


def _batched(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
