"""The selection of events, as the query of a path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict
from urllib.parse import urlencode

from everbell.client.event_json import InstantLike, instant_text
from everbell.client.paths import no_text


class Choice(TypedDict, total=False):
    """The events that match all given fields: the beginnings of target and id, and due times, both included.

    `target` is a whole target as the list of targets names it, and `reason` is why the events are dead.
    """

    key: str | None
    tag: str | None
    to: str | None
    id_prefix: str | None
    from_: InstantLike | None
    until: InstantLike | None
    target: str | None
    reason: str | None


def selection(**given: Any) -> dict[str, Any]:
    """The given arguments, under the names of the API."""
    chosen = {name.rstrip("_"): value for name, value in given.items() if value is not None}
    for name in ("from", "until"):
        if name in chosen:
            chosen[name] = instant_text(chosen[name], name)
    return chosen


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """The path, with the query if there is one. Raises `InvalidInput` for text that cannot be sent."""
    try:
        return f"{path}?{urlencode(query)}" if query else path
    except UnicodeEncodeError as error:
        raise no_text(error.object) from error
