"""Reading a batch: lines of JSON or one array, of which every event stands or falls by itself.

Events without fault are decoded many in one call, which is several times faster than one by one. Only when that fails
is each looked at alone, to find out which are at fault. Sixteen megabytes of `{}` would become a gigabyte of objects:
so lines are decoded some at a time, and no more of them when there are too many. An array can only be decoded as a
whole: there braces and commas are counted first, as no event comes without the one and no array without the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from everbell.core.spec import EventSpec, PlainSpec
from everbell.errors import InvalidInput, TooLarge
from everbell.server.bodies import Body, unreadable

_LINES_BYTES = 32 * 1024
"""How much of a batch of lines is decoded at a time."""
_PLAIN_BYTES = 16 * 1024
"""The same for plain events: so few that most have no more braces together than one of them may have."""
_SLACK = 8
"""How many times the limit is decoded in one go; what is beyond the limit is found out afterwards."""

_specs = Body(EventSpec)
_lines_of_specs = msgspec.json.Decoder(EventSpec).decode_lines
_lines_of_plain = msgspec.json.Decoder(PlainSpec).decode_lines
_array_of_specs = msgspec.json.Decoder(list[EventSpec]).decode
_array_of_texts = msgspec.json.Decoder(list[Raw]).decode

Read = Sequence[EventSpec | InvalidInput]


class NotPlain(Exception):
    """The batch has to be read the long way."""


def read_batch(body: bytes, events_max: int) -> Read:
    """The events of a batch, in order, each decoded or with what is wrong about it."""
    is_array = body.lstrip()[:1] == b"["
    try:
        read = _read_array(body, events_max) if is_array else _read_lines(body, events_max)
    except (msgspec.DecodeError, RecursionError) as error:
        # Lines are at fault one by one; an array that cannot be told into elements is at fault as a whole.
        raise unreadable(error, list[EventSpec]) from None
    if not read:
        raise InvalidInput("the batch is empty; send an event a line, or an array of events")
    if len(read) > events_max:
        raise _too_many(events_max)
    return read


def read_plain(body: bytes) -> Iterator[tuple[bytes, Sequence[PlainSpec]]]:
    """The events of a batch of lines that have no more in them than the least, some lines at a time, and those lines.
    Raises `NotPlain` if that is not what it is.
    """
    if not _is_text(body):
        raise NotPlain
    start = 0
    while start < len(body):
        end = _line_end(body, start + _PLAIN_BYTES, _PLAIN_BYTES)
        if end - start > _PLAIN_BYTES:
            raise NotPlain
        lines = body[start:end]
        try:
            read = _lines_of_plain(lines)
        except (msgspec.DecodeError, RecursionError):
            raise NotPlain from None
        yield lines, read
        start = end


def _is_text(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def _read_lines(body: bytes, events_max: int) -> Read:
    is_text = _is_text(body)
    read: list[EventSpec | InvalidInput] = []
    start = 0
    while start < len(body) and len(read) <= events_max:
        end = _line_end(body, start + _LINES_BYTES)
        read += _read_some(body[start:end], is_text)
        start = end
    return read


def _line_end(body: bytes, near: int, back: int = _LINES_BYTES) -> int:
    """The end of the last line before a place; of the line that it is in, if that is longer than what comes before."""
    if near >= len(body):
        return len(body)
    end = body.rfind(b"\n", near - back, near) + 1 or body.find(b"\n", near) + 1
    return end or len(body)


def _read_some(lines: bytes, is_text: bool) -> Sequence[EventSpec | InvalidInput]:
    # More than that is one long line, and the decoder would not mind if it were many events.
    if is_text and len(lines) <= _LINES_BYTES:
        with suppress(msgspec.DecodeError, RecursionError):
            return _lines_of_specs(lines)
    return _each(line for line in lines.split(b"\n") if line and not line.isspace())


def _read_array(body: bytes, events_max: int) -> Read:
    if body.count(b"{") <= events_max * _SLACK and _is_text(body):
        with suppress(msgspec.ValidationError):
            return _array_of_specs(body)
    if body.count(b",") > events_max * _SLACK:
        _count_elements(body, events_max)
    return _each(map(bytes, _array_of_texts(body)))


def _each(texts: Iterable[bytes]) -> Read:
    parse = _specs.parse
    read: list[EventSpec | InvalidInput] = []
    for text in texts:
        try:
            read.append(parse(text))
        except InvalidInput as error:
            read.append(error.as_value())
    return read


class _Element:
    """An element of an array, of which only the number matters."""


def _count_elements(body: bytes, events_max: int) -> None:
    """Raise when an array has too many elements, without ever holding more than one of them."""
    count = 0

    def counted(_: type, element: Any) -> Any:
        nonlocal count
        count += 1
        if count > events_max:
            raise _too_many(events_max)
        return _ELEMENT

    msgspec.json.decode(body, type=list[_Element], dec_hook=counted)


_ELEMENT = _Element()


def _too_many(events_max: int) -> TooLarge:
    return TooLarge(f"the batch has more than {events_max} events; send it in several requests")
