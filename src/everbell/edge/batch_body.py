"""Reading a batch: lines of JSON or one array. Each event is accepted or rejected on its own.

Valid events are decoded many in one call, which is several times faster than one by one. Only if that fails is each
decoded alone, to find the invalid ones. Sixteen megabytes of `{}` would become a gigabyte of objects. So lines are
decoded some at a time, and decoding stops when there are too many. An array has to be split as a whole, so its commas
are counted first. All of it happens as the events are taken, so that the caller can let other tasks run in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw

from everbell.core.batch_item import ItemSpec
from everbell.core.spec import PlainSpec
from everbell.edge.bodies import Body, unreadable
from everbell.edge.duplicate_keys import are_plain_unique, check_unique
from everbell.errors import InvalidInput, TooLarge

# The number of bytes of a batch of lines that are decoded at a time.
_LINES_BYTES = 32 * 1024
# The same for simple events: usually all of them together have no more braces than one event may have.
_PLAIN_BYTES = 16 * 1024
# The number of elements of an array that are decoded at a time.
_ELEMENTS = 100
# An array with more commas than this many times the limit is counted before it is split.
_SLACK = 8
# The number of errors of a batch that suggest what was meant. A suggestion costs more than reading the event.
_HINTS = 20

_specs = Body(ItemSpec)
_lines_of_specs = msgspec.json.Decoder(ItemSpec).decode_lines
_lines_of_plain = msgspec.json.Decoder(PlainSpec).decode_lines
_array_of_specs = msgspec.json.Decoder(list[ItemSpec]).decode
_array_of_texts = msgspec.json.Decoder(list[Raw]).decode

ReadItem = ItemSpec | InvalidInput


class NotPlain(Exception):
    """The batch has events that are invalid, or not simple."""


def read_batch(body: bytes, events_max: int) -> Iterator[ReadItem]:
    """The events of a batch, in order, each decoded or with its error. They are decoded as they are taken.

    Raises an `InvalidInput` for a batch that is empty or too large, or that cannot be read as a whole.
    """
    is_array = body.lstrip()[:1] == b"["
    count = 0
    try:
        for read in _read_array(body, events_max) if is_array else _read_lines(body):
            count += 1
            if count > events_max:
                raise _too_many(events_max)
            yield read
    except (msgspec.DecodeError, RecursionError) as error:
        # Each invalid line has its own error. An array that cannot be split into elements is invalid as a whole.
        raise unreadable(error, list[ItemSpec]) from None
    if not count:
        raise InvalidInput("the batch is empty; send an event a line, or an array of events")


def read_plain(body: bytes) -> Iterator[tuple[bytes, Sequence[PlainSpec]]]:
    """The simple events of a batch of lines, some lines at a time, each time with the text of the lines.

    Raises `NotPlain` for any other batch.
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
        if not are_plain_unique(lines, read):
            _check_lines(lines, read)
        yield lines, read
        start = end


def _check_lines(lines: bytes, specs: Sequence[PlainSpec]) -> None:
    """Raise `NotPlain` if an event has a key twice. Its error is found in the slow way."""
    try:
        for text, spec in zip(lines.splitlines(), specs, strict=True):
            check_unique(text, spec.payload)
    except (InvalidInput, ValueError):  # ValueError: there are not as many lines as events.
        raise NotPlain from None


def _is_text(body: bytes) -> bool:
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def _read_lines(body: bytes) -> Iterator[ReadItem]:
    is_text, errors = _is_text(body), _Errors()
    start = 0
    while start < len(body):
        end = _line_end(body, start + _LINES_BYTES)
        yield from _read_some(body[start:end], is_text, errors)
        start = end


def _line_end(body: bytes, near: int, back: int = _LINES_BYTES) -> int:
    """The end of the last line that ends before `near`, or, if no line ends there, of the line at `near`."""
    if near >= len(body):
        return len(body)
    end = body.rfind(b"\n", near - back, near) + 1 or body.find(b"\n", near) + 1
    return end or len(body)


def _read_some(lines: bytes, is_text: bool, errors: _Errors) -> Iterable[ReadItem]:
    texts = [line for line in lines.split(b"\n") if line and not line.isspace()]
    # A longer text is one long line. The decoder would accept several events in it.
    if is_text and len(lines) <= _LINES_BYTES:
        with suppress(msgspec.DecodeError, RecursionError, InvalidInput, ValueError):
            specs = _lines_of_specs(lines)
            _check_unique(specs, texts)
            return specs
    return (errors.parse(text) for text in texts)


def _check_unique(specs: Sequence[ItemSpec], texts: Sequence[bytes]) -> None:
    """Raise if there are not as many texts as events, or if one has a key twice."""
    for spec, text in zip(specs, texts, strict=True):
        check_unique(text, spec.payload)


def _read_array(body: bytes, events_max: int) -> Iterator[ReadItem]:
    if body.count(b",") > events_max * _SLACK:
        _count_elements(body, events_max)
    texts = _array_of_texts(body)
    if len(texts) > events_max:
        raise _too_many(events_max)
    is_text, errors = _is_text(body), _Errors()
    for start in range(0, len(texts), _ELEMENTS):
        some = texts[start : start + _ELEMENTS]
        if is_text:
            with suppress(msgspec.ValidationError, InvalidInput):
                parts = list(map(bytes, some))
                specs = _array_of_specs(b"[%b]" % b",".join(parts))
                _check_unique(specs, parts)
                yield from specs
                continue
        yield from (errors.parse(bytes(text)) for text in some)


class _Errors:
    """Decodes events of a batch alone, and counts the invalid ones: only the first few errors have hints."""

    def __init__(self) -> None:
        self._hints_left = _HINTS

    def parse(self, text: bytes) -> ReadItem:
        try:
            return _specs.parse(text, hints=self._hints_left > 0)
        except InvalidInput as error:
            self._hints_left -= 1
            return error.as_value()


class _Element:
    """An element of an array. Only the number of elements is used."""


def _count_elements(body: bytes, events_max: int) -> None:
    """Raise `TooLarge` if an array has too many elements. Only one element is in memory at a time."""
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
