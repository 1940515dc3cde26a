"""Splitting a JSON array into the texts of its elements, one at a time.

The decoder splits an array only as a whole: sixteen megabytes take a tenth of a second, and as many zeros take half a
gigabyte. Here one element is looked at a time. The decoder is asked to skip it, and complains about the character after
it: that is the end of the element. An element that is too large to be a valid event is not looked at further.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw

from everbell.errors import MalformedInput, TooLarge

_skip = msgspec.json.Decoder(Raw).decode
_AFTER = re.compile(r"trailing characters \(byte (\d+)\)$")
_SPACE = b" \t\r\n"
_FIRST_LOOK_BYTES = 2_048
_LARGER = 4
_SPACE_BYTES = 64 * 1024


def is_array(body: bytes) -> bool:
    """Whether the first character is that of an array."""
    start = _next(body, 0)
    return body[start : start + 1] == b"["


def split_array(body: bytes, element_bytes_max: int) -> Iterator[bytes]:
    """The elements of a body that `is_array`, in order.

    Raises `MalformedInput`, `msgspec.DecodeError`, `RecursionError`, and `TooLarge` for an element that is larger.
    """
    view = memoryview(body)
    start = _next(body, _next(body, 0) + 1)
    if body[start : start + 1] == b"]":
        _check_end(body, start)
        return
    while True:
        end = _end_of(view, start, element_bytes_max)
        yield body[start:end]
        if body[end : end + 1] != b",":
            _check_end(body, end)
            return
        start = end + 1


def _end_of(view: memoryview, start: int, bytes_max: int) -> int:
    """The place of the character after the element at `start`, white space left out."""
    size = _FIRST_LOOK_BYTES
    while True:
        try:
            _skip(view[start : start + size])
        except msgspec.DecodeError as error:
            after = _AFTER.search(str(error))
            if after is not None:
                return start + int(after[1]) - 1
            if start + size >= len(view) or "truncated" not in str(error):
                raise
        # The look ended inside the element, or right after it, perhaps in the middle of a number.
        if start + size >= len(view):
            raise MalformedInput("the array has no end")
        if size >= bytes_max:
            raise TooLarge(f"an event of the batch has more than {bytes_max} bytes; send a smaller payload")
        size = min(size * _LARGER, bytes_max)


def _check_end(body: bytes, end: int) -> None:
    if body[end : end + 1] != b"]" or _next(body, end + 1) < len(body):
        raise MalformedInput("expected a comma, or the end of the array, after an event")


def _next(body: bytes, start: int) -> int:
    """The place of the next character that is not white space, looked for some bytes at a time."""
    while start < len(body):
        some = body[start : start + _SPACE_BYTES]
        rest = some.lstrip(_SPACE)
        if rest:
            return start + len(some) - len(rest)
        start += len(some)
    return start
