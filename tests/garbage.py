"""Find the objects that reference counting does not free, and only the garbage collector would."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[list[object]]:
    """The objects that become garbage in this block and that reference counting does not free; filled at the end."""
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
