"""What counting references does not free, and only the collector would."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[list[object]]:
    """What becomes garbage in here that counting references does not free; filled at the end."""
    left: list[object] = []
    gc.collect()
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
