"""Typed payloads: dataclasses, msgspec Structs, pydantic models, and everything else that msgspec can read from JSON.

A payload that does not fit its type never will, however often it is attempted. So it makes the event dead, and the
reason names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import ValidationError
from msgspec import json as msgspec_json

from everbell.channels.handler import Refuse
from everbell.core.occurrence import Occurrence
from everbell.errors import InvalidInput

ReadPayload = Callable[[Occurrence], Any]


def reader_of(kind: Any) -> ReadPayload:
    """The function that reads the payload of an occurrence as a value of this type. Raises `InvalidInput`."""
    if kind is Any:
        return lambda occurrence: occurrence.payload
    if kind is bytes:
        return lambda occurrence: occurrence.raw
    name = getattr(kind, "__name__", str(kind))
    if hasattr(kind, "model_validate_json"):
        return _checked(kind.model_validate_json, name)
    try:
        decoder = msgspec_json.Decoder(kind)
    except TypeError as error:
        raise InvalidInput(f"{name} is not a type that JSON can be read as: {error}") from error
    return _checked(decoder.decode, name)


def _checked(decode: Callable[[bytes], Any], name: str) -> ReadPayload:
    def read(occurrence: Occurrence) -> Any:
        if occurrence.content_type is not None:
            raise Refuse(f"the payload does not fit {name}: it is {occurrence.content_type}, not JSON")
        try:
            return decode(occurrence.raw)
        except (ValidationError, ValueError) as error:
            raise Refuse(f"the payload does not fit {name}: {_misfit(error)}") from error

    return read


def _misfit(error: Exception) -> str:
    """The problem and its field. The errors of pydantic are several lines; each of its problems becomes a phrase."""
    if isinstance(error, ValidationError) or not hasattr(error, "errors"):
        return str(error)
    problems = error.errors()
    return "; ".join(f"{each['msg']} - at `$.{'.'.join(map(str, each['loc']))}`" for each in problems)
