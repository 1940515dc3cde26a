"""Telling a write that a power failure interrupted from one that was damaged later."""

from __future__ import annotations

SECTOR = 512


def lacks_sectors(content: bytes, start: int, end: int) -> bool:
    """Whether a part of `content[start:end]` never reached the disk.

    A disk writes whole sectors. A sector of a new place that it did not write lies beyond the end of the file, or is
    read as zeros. A flipped bit changes neither the length of the file nor a whole sector.
    """
    if end > len(content):
        return True
    place = start
    while place < end:
        after = min(place - place % SECTOR + SECTOR, end)
        if content.count(0, place, after) == after - place:
            return True
        place = after
    return False
