"""The tags that clients of facades give to their events, counted for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from everbell.core.exposition import labelled

# A client makes up the tags: beyond this number, all others count as one.
_TAGS_MAX = 500
_TAG_LENGTH_MAX = 64
OTHER = "other"


class TagCounts:
    """How often each tag was given since the start."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, tags: Mapping[str, int]) -> None:
        for tag, count in tags.items():
            name = tag[:_TAG_LENGTH_MAX]
            self._counts[name if name in self._counts or len(self._counts) < _TAGS_MAX else OTHER] += count

    def metrics(self) -> list[str]:
        """The samples; none before the first tag."""
        if not self._counts:
            return []
        help_text = "Tags of events that clients of facades scheduled, since the start."
        return labelled("everbell_facade_tags_total", "counter", help_text, "tag", self._counts)
