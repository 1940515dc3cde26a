"""Times in answers: RFC 3339. The latest texts are cached, because many events share the same seconds."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from msgspec import Meta

from everbell.core.time import format_instant

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


@lru_cache(maxsize=4_096)
def instant(at: int) -> str:
    """An instant as it is answered."""
    return f"{_second(at // 1_000)}{at % 1_000:03d}Z"


@lru_cache(maxsize=4_096)
def _second(at_s: int) -> str:
    return format_instant(at_s * 1_000)[:-4]
