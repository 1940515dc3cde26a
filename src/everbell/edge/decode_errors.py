"""Errors of the decoder, in words for the author of the request.

The error of msgspec is "Expected `str | null`, got `int` - at `$.key`"; a user reads "key: expected a string or null,
got an integer", with `key` as the field. For an unknown name the message suggests the nearest known name, and for a
wrong choice it lists the choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from everbell.errors import InvalidInput

NAME_SHOWN_MAX = 64

_PLACE = re.compile(r" - at `(?:key in )?\$(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[")
_TYPES = re.compile(r"`([a-z0-9 |]+)`")
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "an array",
}


def complaint(error: msgspec.ValidationError, expected: Any, *, hints: bool = True) -> InvalidInput:
    """The error for a value that is not of the type `expected`. Without `hints`, it suggests no names."""
    text = str(error)
    place = _PLACE.search(text)
    path = place[1] if place else ""
    what = text[: place.start()] if place else text
    if unknown := _UNKNOWN.match(what):
        name = unknown[1][:NAME_SHOWN_MAX]
        near = get_close_matches(name, _names_at(expected, path), 1) if hints else ()
        hint = f"; did you mean {near[0]}?" if near else ""
        return InvalidInput(f"there is no such field{hint}", _field(path, name))
    if missing := _MISSING.match(what):
        return InvalidInput("is missing", _field(path, missing[1]))
    if hints and what.startswith("Invalid enum value"):
        return InvalidInput(f"must be one of {', '.join(_choices_at(expected, path))}", _field(path))
    return InvalidInput(_TYPES.sub(_in_words, what[:1].lower() + what[1:]), _field(path))


def _field(path: str, name: str = "") -> str | None:
    """Join `.retry` and `backoff` to `retry.backoff`. The decoder does not name the key of a mapping."""
    return f"{path.replace('[...]', '')}.{name}".strip(".") or None


def _in_words(types: re.Match[str]) -> str:
    names = types[1].split(" | ")
    if "float" in names and "int" in names:
        names.remove("int")
    words = [_WORDS.get(name, name) for name in names]
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def _names_at(expected: Any, path: str) -> list[str]:
    return [
        field.encode_name
        for type_ in _types_at(expected, path)
        if isinstance(type_, inspect.StructType)
        for field in type_.fields
    ]


def _choices_at(expected: Any, path: str) -> list[str]:
    return [
        str(value)
        for type_ in _types_at(expected, path)
        if isinstance(type_, inspect.LiteralType)
        for value in type_.values
    ]


def _types_at(expected: Any, path: str) -> list[inspect.Type]:
    types = list(_alternatives(_type_info(expected)))
    for step in _STEP.finditer(path):
        types = [inner for type_ in types for inner in _inside(type_, step[1])]
    return types


# Making the description of a type takes a millisecond.
_type_info = lru_cache(maxsize=64)(inspect.type_info)


def _inside(type_: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """The types of a field of a structure, or of an item of a list."""
    if isinstance(type_, inspect.StructType):
        for field in type_.fields:
            if field.encode_name == name:
                yield from _alternatives(field.type)
    elif isinstance(type_, inspect.ListType | inspect.VarTupleType) and name is None:
        yield from _alternatives(type_.item_type)


def _alternatives(type_: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(type_, inspect.Metadata):
        yield from _alternatives(type_.type)
    elif isinstance(type_, inspect.UnionType):
        for one in type_.types:
            yield from _alternatives(one)
    else:
        yield type_
