"""Reading a batch: lines of JSON or one array. Each event is accepted or rejected on its own.

Valid events are decoded many in one call, which is several times faster than one by one. Only if that fails is each
decoded alone, to find the invalid ones. Sixteen megabytes of `{}` would become a gigabyte of objects. So lines are
decoded some at a time, and decoding stops when there are too many. All of it happens as the events are taken, so that
the caller can let other tasks run in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from everbell.core.batch_item import ItemSpec
from everbell.core.spec import PlainSpec
from everbell.edge.array_split import is_array, split_array
from everbell.edge.bodies import EVENT_BYTES_MAX, Body, unreadable
from everbell.edge.duplicate_keys import are_plain_unique, check_unique
from everbell.errors import InvalidInput, TooLarge

# The number of bytes of a batch of lines that are decoded at a time.
_LINES_BYTES = 32 * 1024
# The same for simple events: usually all of them together have no more braces than one event may have.
_PLAIN_BYTES = 16 * 1024
# The number of elements of an array that are decoded at a time.
_ELEMENTS = 100
# The number of bytes after which other tasks should run.
_TURN_BYTES = 256 * 1024
# The number of errors of a batch that suggest what was meant. A suggestion costs more than reading the event.
_HINTS = 20

_specs = Body(ItemSpec)
_lines_of_specs = msgspec.json.Decoder(ItemSpec).decode_lines
_lines_of_plain = msgspec.json.Decoder(PlainSpec).decode_lines
_array_of_specs = msgspec.json.Decoder(list[ItemSpec]).decode

ReadItem = ItemSpec | InvalidInput


class NotPlain(Exception):
    """The batch has events that are invalid, or not simple."""


def read_batch(body: bytes, events_max: int, event_bytes_max: int = EVENT_BYTES_MAX) -> Iterator[ReadItem | None]:
    """The events of a batch, in order, each decoded or with its error. They are decoded as they are taken.

    None is no event: it took a while to get here, and other tasks should run. An event with more bytes than
    `event_bytes_max` is refused unread. Raises an `InvalidInput` for a batch that is empty or too large, or that cannot
    be read as a whole.
    """
    count = 0
    try:
        for read in _read_array(body, event_bytes_max) if is_array(body) else _read_lines(body, event_bytes_max):
            count += read is not None
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


def _read_lines(body: bytes, event_bytes_max: int) -> Iterator[ReadItem | None]:
    is_text, errors = _is_text(body), _Errors()
    if len(body) > _TURN_BYTES:
        yield None
    start = since = 0
    while start < len(body):
        end = _line_end(body, start + _LINES_BYTES)
        if end - start > _LINES_BYTES + event_bytes_max:
            yield TooLarge(f"an event has at most {event_bytes_max} bytes; send a smaller payload")
        else:
            yield from _read_some(body[start:end], is_text, errors)
        since += end - start
        start = end
        if since >= _TURN_BYTES:
            since = 0
            yield None


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


def _read_array(body: bytes, event_bytes_max: int) -> Iterator[ReadItem | None]:
    is_text, errors = _is_text(body), _Errors()
    if len(body) > _TURN_BYTES:
        yield None
    some: list[bytes] = []
    size = since = 0
    for text in split_array(body, event_bytes_max):
        some.append(text)
        size += len(text)
        if len(some) >= _ELEMENTS or size >= _LINES_BYTES:
            yield from _read_elements(some, is_text, errors)
            since += size
            some, size = [], 0
            if since >= _TURN_BYTES:
                since = 0
                yield None
    yield from _read_elements(some, is_text, errors)


def _read_elements(texts: list[bytes], is_text: bool, errors: _Errors) -> Iterable[ReadItem]:
    if is_text:
        with suppress(msgspec.DecodeError, RecursionError, InvalidInput):
            specs = _array_of_specs(b"[%b]" % b",".join(texts))
            _check_unique(specs, texts)
            return specs
    return (errors.parse(text) for text in texts)


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


def _too_many(events_max: int) -> TooLarge:
    return TooLarge(f"the batch has more than {events_max} events; send it in several requests")
