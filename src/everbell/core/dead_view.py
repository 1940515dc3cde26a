"""Dead events in groups, as users see them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

GROUPS_MAX = 200


class DeadGroup(Struct, frozen=True):
    """Dead events of one target that died for the same reason. `target` and `reason` select the group."""

    target: str
    reason: str
    count: int
    latest: Annotated[str, Meta(description="the latest due time among them")]
    example: Annotated[str, Meta(description="the id of one of them")]


class DeadGroupsView(Struct, frozen=True):
    """Dead events by target and reason, the largest group first."""

    groups: Annotated[tuple[DeadGroup, ...], Meta(max_length=GROUPS_MAX)]
    counted: Annotated[int, Meta(description="the number of dead events that were read for this")]
    more: Annotated[bool, Meta(description="whether there are more events, or more groups")]
