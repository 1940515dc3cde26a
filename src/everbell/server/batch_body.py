"""Reading a batch: lines of JSON or one array, of which every event stands or falls by itself.

A batch without fault is decoded in one call, which is several times faster than event by event. Only when that fails
is each looked at alone, to find out which are at fault. A batch is bounded before it is decoded, since sixteen
megabytes of `{}` would become half a gigabyte of objects; braces and commas are counted for that, as no event comes
without the one and no array without the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from everbell.core.spec import EventSpec
from everbell.errors import InvalidInput, TooLarge
from everbell.server.bodies import Body, unreadable

_SLACK = 8
"""How many times the limit is decoded in one go; what is beyond the limit is found out afterwards."""

_specs = Body(EventSpec)
_lines_of_specs = msgspec.json.Decoder(EventSpec).decode_lines
_array_of_specs = msgspec.json.Decoder(list[EventSpec]).decode
_array_of_texts = msgspec.json.Decoder(list[Raw]).decode

Read = Sequence[EventSpec | InvalidInput]


def read_batch(body: bytes, events_max: int) -> Read:
    """The events of a batch, in order, each decoded or with what is wrong about it."""
    at_once = body.count(b"{") <= events_max * _SLACK and _is_text(body)
    is_array = body.lstrip()[:1] == b"["
    try:
        read = _read_array(body, events_max, at_once) if is_array else _read_lines(body, events_max, at_once)
    except (msgspec.DecodeError, RecursionError) as error:
        # Lines are at fault one by one; an array that cannot be told into elements is at fault as a whole.
        raise unreadable(error, list[EventSpec]) from None
    if not read:
        raise InvalidInput("the batch is empty; send an event a line, or an array of events")
    if len(read) > events_max:
        raise _too_many(events_max)
    return read


def _is_text(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def _read_lines(body: bytes, events_max: int, at_once: bool) -> Read:
    if at_once:
        with suppress(msgspec.DecodeError, RecursionError):
            return _lines_of_specs(body)
    if body.count(b"\n") > events_max * _SLACK:
        raise _too_many(events_max)
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    if len(lines) > events_max:
        raise _too_many(events_max)
    return _each(lines)


def _read_array(body: bytes, events_max: int, at_once: bool) -> Read:
    if at_once:
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
            read.append(error)
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
