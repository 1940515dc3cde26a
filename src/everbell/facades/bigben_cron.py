"""Crons of BigBen: recurring events, in the four dialects that BigBen knows.

A cron is the event `cron/TYPE/ID` with the id as its key. Its expression is its payload, as BigBen sends it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from itertools import islice
from typing import Literal, get_args

from msgspec import Struct

from everbell.core.bigben import bigben_tenant, event_time, payload_of
from everbell.core.event import Event
from everbell.core.recurrence import upcoming
from everbell.core.repeat_spec import RepeatSpec
from everbell.core.spec import EventSpec
from everbell.errors import InvalidInput
from everbell.facades.bigben_request import JSON_TYPE

CronType = Literal["UNIX", "QUARTZ", "CRON4J", "SPRING"]
CRON_TYPES: tuple[CronType, ...] = get_args(CronType)

_SHOWN = 3
_DAY = re.compile(r"(?<![#/0-9])[1-7](?![0-9])", re.ASCII)


class CronSpec(Struct, frozen=True):
    """A cron as clients of BigBen write it. Unknown fields are ignored."""

    id: str
    expression: str
    type: CronType
    tenant: str


class CronView(Struct, frozen=True, rename="camel"):
    """A cron as BigBen shows it."""

    id: str
    expression: str
    type: CronType
    tenant: str
    last_updated: str


class CronDescription(Struct, frozen=True, omit_defaults=True):
    """A cron and, if asked for, its next times."""

    cron: CronView
    description: str | None = None


def cron_id(cron_type: CronType, name: str) -> str:
    """The id of the event of a cron."""
    return f"cron/{cron_type}/{name}"


def cron_event(cron: CronSpec) -> EventSpec:
    """The event of a cron. Raises `InvalidInput`."""
    if not cron.id.strip():
        raise InvalidInput("null or empty id")
    return EventSpec(
        id=cron_id(cron.type, cron.id),
        key=cron.id,
        repeat=RepeatSpec(cron=native_expression(cron.expression, cron.type), misfire="latest"),
        payload_base64=b64encode(cron.expression.encode()).decode(),
        content_type=JSON_TYPE,
    )


def native_expression(expression: str, cron_type: CronType) -> str:
    """An expression in the form of Everbell. Raises `InvalidInput` for one that means nothing in its dialect."""
    fields = expression.split()
    wanted = (5,) if cron_type in ("UNIX", "CRON4J") else (6, 7) if cron_type == "QUARTZ" else (6,)
    if len(fields) not in wanted:
        count = " or ".join(map(str, wanted))
        raise InvalidInput(f"an expression of the type {cron_type} has {count} fields, not {len(fields)}")
    if cron_type == "QUARTZ":
        if fields[6:] not in ([], ["*"]):
            raise InvalidInput("a year is not possible: leave it out, or write *")
        # Quartz counts the days of the week from 1, for Sunday.
        fields = [*fields[:5], _DAY.sub(lambda day: str(int(day[0]) - 1), fields[5])]
    return " ".join("*" if field == "?" else field for field in fields)


def cron_view(event: Event, cron_type: CronType, *, describe: bool) -> CronDescription:
    """A cron from its event."""
    expression = payload_of(event) or ""
    tenant = bigben_tenant(event.tenant) or event.tenant
    view = CronView(event.key or event.id, expression, cron_type, tenant, event_time(event.created_at))
    if not describe or event.repeat is None:
        return CronDescription(view)
    times = islice(upcoming(event.repeat, event.due_at, event.occurrence), _SHOWN)
    return CronDescription(view, "next at " + ", ".join(event_time(at) for _, at in times))
