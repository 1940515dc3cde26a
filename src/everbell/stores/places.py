"""How far a search got: the place of a row in the order of its space, as a cursor carries it."""

from __future__ import annotations

from typing import Any

import msgspec

from everbell.stores.semantics import Space, bad_cursor

Place = tuple[Any, ...]

_PLACES: dict[Space, msgspec.msgpack.Decoder[Any]] = {
    "E": msgspec.msgpack.Decoder(tuple[int, int]),
    "W": msgspec.msgpack.Decoder(tuple[int, str, int, int]),
    "D": msgspec.msgpack.Decoder(tuple[int, int]),
    "H": msgspec.msgpack.Decoder(tuple[int, str, int]),
}
FIRST: dict[Space, Place] = {
    "E": (-1, -1),
    "W": (-1, "", -1, -1),
    "D": (-1, -1),
    "H": ((1 << 31) - 1, "", -1),
}
NUMBER_MAX = (1 << 63) - 1


def write_place(place: Place) -> bytes:
    """A place as a cursor carries it."""
    return msgspec.msgpack.encode(place)


def read_place(space: Space, raw: bytes) -> Place:
    """The place that a cursor carries, the beginning of the space if it has none. Raises `InvalidInput`."""
    if not raw:
        return FIRST[space]
    try:
        place: Place = _PLACES[space].decode(raw)
    except msgspec.DecodeError as error:
        raise bad_cursor() from error
    numbers = [part for part in place if isinstance(part, int)]
    if not all(-1 <= number <= NUMBER_MAX for number in numbers) or any("\0" in str(part) for part in place):
        raise bad_cursor()
    if space in "WH" and place[0] >= 1 << 31:
        raise bad_cursor()
    return place
