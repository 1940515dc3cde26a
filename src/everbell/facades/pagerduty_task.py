"""Tasks of PagerDuty's scheduler: their records in Kafka, and the names of tasks.

The id of the event of a task is made of ordering id, time and uniqueness key (`identity: key+at+id`). Its key is the
ordering id, so tasks of one ordering id run one at a time and in order. The payload is the record as it came, which
has everything that a program for that scheduler expects of a task.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from everbell.core.batch_item import BatchItem, ItemSpec, identify
from everbell.core.tenant import Tenant
from everbell.core.time import format_instant, parse_instant
from everbell.edge.bodies import Body
from everbell.edge.drafting import Edge
from everbell.errors import InvalidInput

POLICY: dict[str, Any] = {
    "identity": "key+at+id",
    "retention": "14d",
    "retry": {"max_attempts": 101, "backoff": "20s", "max_backoff": "120s"},
    "on_dead": "park",
}
"""The policy of a tenant with tasks: a task that ended does not run again for 14 days, and is tried 101 times."""

Text = Annotated[str, Meta(min_length=1)]

_KEY = re.compile(r"TaskKey\((.+)\)", re.DOTALL)
_PARTS = 3


class TaskRecord(Struct, frozen=True, rename="camel"):
    """A task as its producers write it. Unknown fields are ignored."""

    ordering_id: Text
    scheduled_time: Text
    uniqueness_key: Text
    task_data: dict[str, str]
    version: int = 1


_parse = Body(TaskRecord).parse


def task_item(value: bytes, edge: Edge, policy: Tenant, now: int, produced_at: int | None) -> BatchItem:
    """The item of a record: the same task again is put in its place. Raises `InvalidInput`."""
    task = _parse(value)
    if task.version != 1:
        raise InvalidInput(f"is {task.version}, and only version 1 is known", "version")
    spec = ItemSpec(
        mode="put",
        id=task.uniqueness_key,
        key=task.ordering_id,
        at=format_instant(parse_instant(task.scheduled_time, "scheduledTime")),
        payload=Raw(value),
    )
    if policy.identity == "id":
        raise InvalidInput("the tenant of a topic with tasks needs identity: key+at+id", "identity")
    return edge.item(spec, policy, now, None, None, produced_at)


def task_id(text: str, policy: Tenant) -> str:
    """The id of the event of a task that is named as in `TaskKey(time,orderingId,uniquenessKey)`. Raises
    `InvalidInput`.
    """
    match = _KEY.fullmatch(text)
    parts = [] if match is None else match[1].split(",")
    if len(parts) != _PARTS or not all(parts):
        raise InvalidInput("Unable to parse provided task key", "key")
    at, ordering_id, uniqueness_key = parts
    spec = ItemSpec(id=uniqueness_key, key=ordering_id, at=format_instant(parse_instant(at, "key")))
    identify(spec, policy)
    assert spec.id is not None
    return spec.id


def task_key(due_at: int, ordering_id: str, event_id: str) -> str:
    """The name of a task, from its event."""
    # The id ends with the uniqueness key, which may have commas; the ordering id in it is escaped.
    uniqueness_key = event_id.split(",", _PARTS - 1)[-1]
    return f"TaskKey({format_instant(due_at)},{ordering_id},{uniqueness_key})"
