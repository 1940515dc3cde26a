"""Judges searches, counts and forecasts that run while events are added, moved and finished.

The checker knows the history of every event as stays: from when to when the event lay at one place of the order. Each
change has two instants, because a search that runs at the same time may see it or not: `sent` and `stored`. A search
that began at one instant and ended at another keeps these rules:

- kept: an event that stayed at its place and matched during the whole search is found exactly once;
- forward: an event that matched during the whole search, and moved only to later places, is found at least once;
- stray: an event that matched at no instant of the search is never found;
- twice: an event is found at most once for each place at which it lay during the search.

An event that moved to an earlier place may be missed: the search had passed that place already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

NEVER = 1 << 62

SearchedPlace = tuple[Any, ...]


@dataclass
class Form:
    """The content of an event between two changes."""

    content: Any
    sent: int
    stored: int = NEVER
    left_sent: int = NEVER
    left_stored: int = NEVER

    def may_overlap(self, began: int, ended: int) -> bool:
        return self.sent <= ended and self.left_stored >= began


@dataclass
class Stay:
    """The time that an event spends at one place."""

    place: SearchedPlace
    forms: list[Form] = field(default_factory=list)


Meant = Callable[[Any], bool]


class SearchChecker:
    """The history of all events, by name."""

    def __init__(self) -> None:
        self._stays: dict[str, list[Stay]] = {}

    def begin(self, name: str, place: SearchedPlace | None, content: Any, at: int) -> None:
        """A change of the event was sent: it gets a place and a content, or (None) it ends."""
        stays = self._stays.setdefault(name, [])
        is_present = bool(stays) and stays[-1].forms[-1].left_sent == NEVER
        if is_present:
            stays[-1].forms[-1].left_sent = at
        if place is None:
            return
        if not is_present or stays[-1].place != place:
            stays.append(Stay(place))
        stays[-1].forms.append(Form(content, at))

    def settle(self, name: str, at: int) -> None:
        """The last change of the event is stored."""
        for form in (form for stay in self._stays[name][-2:] for form in stay.forms[-2:]):
            form.stored = min(form.stored, at)
            if form.left_sent < NEVER:
                form.left_stored = min(form.left_stored, at)

    def violations(self, found: Iterable[str], began: int, ended: int, is_meant: Meant) -> list[str]:
        """The broken rules of one search."""
        counts = Counter(found)
        wrong = [f"stray: {name} is unknown" for name in counts.keys() - self._stays.keys()]
        for name, stays in self._stays.items():
            rule = _broken(_during(stays, began, ended), counts[name], began, ended, is_meant)
            if rule:
                wrong.append(f"{rule}: {name} was found {counts[name]} times")
        return sorted(wrong)

    def bounds(self, began: int, ended: int, is_meant: Meant) -> tuple[int, int]:
        """The least and the greatest number of events that match at one instant of this time."""
        least = most = 0
        for stays in self._stays.values():
            during = _during(stays, began, ended)
            most += any(_some_meant(stay, is_meant) for stay in during)
            least += _is_present(during, began, ended) and all(_all_meant(stay, is_meant) for stay in during)
        return least, most

    def kept(self, began: int, ended: int) -> list[Any]:
        """The last content of each event that stayed at its place during this time."""
        parts = (_during(stays, began, ended) for stays in self._stays.values())
        return [
            during[0].forms[-1].content for during in parts if len(during) == 1 and _is_present(during, began, ended)
        ]


def _during(stays: Sequence[Stay], began: int, ended: int) -> list[Stay]:
    """The parts of stays that a search may have seen."""
    if not stays or stays[-1].forms[-1].left_stored < began:
        return []
    parts = [Stay(stay.place, [form for form in stay.forms if form.may_overlap(began, ended)]) for stay in stays]
    return [part for part in parts if part.forms]


def _broken(during: Sequence[Stay], count: int, began: int, ended: int, is_meant: Meant) -> str:
    """The rule that a search broke for one event; empty if it broke none."""
    meant = [stay for stay in during if _some_meant(stay, is_meant)]
    if count > len(meant):
        return "twice" if meant else "stray"
    if count or not _is_present(during, began, ended) or not all(_all_meant(stay, is_meant) for stay in during):
        return ""
    places = [stay.place for stay in during]
    return "kept" if len(places) == 1 else "forward" if places == sorted(places) else ""


def _is_present(during: Sequence[Stay], began: int, ended: int) -> bool:
    """Whether the event existed from the beginning to the end."""
    forms = [form for stay in during for form in stay.forms]
    return (
        bool(forms)
        and forms[0].stored <= began
        and forms[-1].left_sent >= ended
        and all(one.left_sent == other.sent for one, other in pairwise(forms))
    )


def _some_meant(stay: Stay, is_meant: Meant) -> bool:
    return any(is_meant(form.content) for form in stay.forms)


def _all_meant(stay: Stay, is_meant: Meant) -> bool:
    return all(is_meant(form.content) for form in stay.forms)
