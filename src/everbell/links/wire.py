"""Requests and answers as bytes, the same between a gateway and its engine and between nodes.

    [number, tag, [field, …]]                                   a request
    [number, answer]                                            its answer
    [number, nil, [error class, message, field or seconds]]     it was refused

The tag tells the class of the request, and so the types of its fields and of its answer. Nodes of the previous version
read and write the same bytes. Where a value's fields differ from those bytes, it is packed: `_PackedAmend`,
`_Scheduled` and `_Applied`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

import everbell.engine.view_requests  # Its requests are in `CODECS`, too.
import everbell.errors
from everbell.core.amendment import Amendment
from everbell.core.batch_item import ItemDone, ItemResult
from everbell.core.event import Repeat
from everbell.core.request import Request, answer_type, requests_of
from everbell.core.retry import RetryPolicy
from everbell.engine import replica_requests as replica_requests  # Its requests travel over links, too.
from everbell.engine.requests import Amend, ApplyItems, Schedule
from everbell.engine.seen import DraftResult, Seen
from everbell.errors import EverbellError, InvalidInput, Overloaded

PackedError = tuple[str, str, str | int | None]
"""The class, the message, and the field or the seconds to wait."""

NOTHING = Raw(b"\xc0")
encode_into = msgspec.msgpack.Encoder().encode_into


class RequestFrame(Struct, array_like=True, frozen=True):
    """A request as it is read; its number is repeated in the answer."""

    number: int
    tag: str
    fields: Raw


class Answer(Struct, array_like=True, frozen=True):
    number: int
    result: Raw
    error: PackedError | None = None


class PackedAmendment(Struct, array_like=True, frozen=True):
    """An `Amendment`, with names of the fields that are set instead of `UNSET`, which arrays cannot hold."""

    due_at: int | None = None
    to: str | None = None
    payload: bytes | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    tags: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()
    content_type: str | None = None
    retry: RetryPolicy | None = None
    repeat: Repeat | None = None
    expires_ms: int | None = None
    paused: bool | None = None
    note: str | None = None
    shift_ms: int | None = None
    latest_at: int | None = None

    @classmethod
    def pack(cls, amendment: Amendment) -> PackedAmendment:
        fields = {
            name: value for name in Amendment.__struct_fields__ if (value := getattr(amendment, name)) is not UNSET
        }
        return cls(named=tuple(fields), **fields)

    def unpack(self) -> Amendment:
        return Amendment(**{name: getattr(self, name) for name in self.named})


class _PackedAmend(Struct, array_like=True, frozen=True):
    tenant: str
    id: str
    amendment: PackedAmendment
    version: int | None

    @classmethod
    def pack(cls, request: Amend) -> _PackedAmend:
        return cls(request.tenant, request.id, PackedAmendment.pack(request.amendment), request.version)

    def unpack(self) -> Amend:
        return Amend(self.tenant, self.id, self.amendment.unpack(), self.version)


class _Scheduled(Struct, array_like=True, frozen=True):
    """The results of many drafts: the ids of new events, and by index the existing events and the errors."""

    ids: list[str | None]
    seen: dict[int, Seen]
    errors: dict[int, PackedError]

    @classmethod
    def pack(cls, results: Sequence[DraftResult]) -> _Scheduled:
        scheduled = cls([], {}, {})
        for index, result in enumerate(results):
            if isinstance(result, str):
                scheduled.ids.append(result)
                continue
            scheduled.ids.append(None)
            if isinstance(result, Seen):
                scheduled.seen[index] = result
            else:
                scheduled.errors[index] = pack_error(result)
        return scheduled

    def unpack(self) -> Sequence[DraftResult]:
        results: list[DraftResult | None] = list(self.ids)
        for index, seen in self.seen.items():
            results[index] = seen
        for index, error in self.errors.items():
            results[index] = unpack_error(error)
        return [result for result in results if result is not None]


class _Applied(Struct, array_like=True, frozen=True):
    """The results of many items: those that were applied, and by index the errors."""

    done: list[ItemDone | None]
    errors: dict[int, PackedError]

    @classmethod
    def pack(cls, results: Sequence[ItemResult]) -> _Applied:
        errors = {index: pack_error(one) for index, one in enumerate(results) if isinstance(one, EverbellError)}
        return cls([one if isinstance(one, ItemDone) else None for one in results], errors)

    def unpack(self) -> Sequence[ItemResult]:
        return [one or unpack_error(self.errors[index]) for index, one in enumerate(self.done)]


class Codec(Struct, frozen=True):
    """How a request and its answer are written and read; `pack` converts values that are not sent field by field."""

    kind: type[Request[Any]]
    read: Callable[[Raw], Any]
    read_answer: Callable[[Raw], Any]
    pack: Callable[[Any], object] | None = None
    pack_answer: Callable[[Any], object] | None = None

    def message(self, number: int, request: Request[Any]) -> object:
        """A request as a frame holds it."""
        return number, self.kind.tag, request if self.pack is None else self.pack(request)

    def reply(self, number: int, answer: object) -> object:
        """An answer as a frame holds it."""
        return number, answer if self.pack_answer is None else self.pack_answer(answer)


def _codec_of(kind: type[Request[Any]]) -> Codec:
    if kind is Amend:
        read_packed = msgspec.msgpack.Decoder(_PackedAmend).decode
        read_seen = msgspec.msgpack.Decoder(Seen).decode
        return Codec(kind, lambda raw: read_packed(raw).unpack(), read_seen, _PackedAmend.pack)
    if kind is Schedule:
        read_results = msgspec.msgpack.Decoder(_Scheduled).decode
        read = msgspec.msgpack.Decoder(Schedule).decode
        return Codec(kind, read, lambda raw: read_results(raw).unpack(), None, _Scheduled.pack)
    if kind is ApplyItems:
        read_applied = msgspec.msgpack.Decoder(_Applied).decode
        read_items = msgspec.msgpack.Decoder(ApplyItems).decode
        return Codec(kind, read_items, lambda raw: read_applied(raw).unpack(), None, _Applied.pack)
    return Codec(kind, msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.Decoder(answer_type(kind)).decode)


CODECS: dict[str, Codec] = {kind.tag: _codec_of(kind) for kind in requests_of(Request)}
"""By tag."""
read_asked = msgspec.msgpack.Decoder(RequestFrame).decode
read_reply = msgspec.msgpack.Decoder(Answer).decode


def pack_error(error: EverbellError) -> PackedError:
    """An error as it is sent."""
    name = type(error).__name__ if hasattr(everbell.errors, type(error).__name__) else "EverbellError"
    if isinstance(error, InvalidInput):
        return name, error.reason, error.field
    return name, str(error), error.retry_after_s if isinstance(error, Overloaded) else None


def unpack_error(packed: PackedError) -> EverbellError:
    """The error that was raised. A class that only a newer version has becomes `EverbellError`."""
    name, message, extra = packed
    kind: Any = getattr(everbell.errors, name, None)
    if kind is None:
        return EverbellError(message)
    error = kind(message) if extra is None else kind(message, extra)
    assert isinstance(error, EverbellError)
    return error
