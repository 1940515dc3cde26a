"""Requests and answers as bytes inside another request: for a part of a node that is no engine of the link."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from everbell.core.request import Ask, Request
from everbell.errors import EverbellError, Overloaded
from everbell.links.wire import CODECS, NOTHING, Answer, pack_error, read_asked, read_reply, unpack_error

A = TypeVar("A")

_encode = msgspec.msgpack.Encoder().encode


def pack_request(request: Request[Any]) -> bytes:
    """A request as bytes."""
    return _encode(CODECS[request.tag].message(0, request))


async def answer_packed(packed: bytes, ask: Ask) -> bytes:
    """Answer a packed request. An error that was raised on purpose is part of the answer."""
    asked = read_asked(packed)
    codec = CODECS.get(asked.tag)
    if codec is None:
        unknown = Overloaded(f"this node's version does not know the request {asked.tag}; nothing was done")
        return _encode(Answer(0, NOTHING, pack_error(unknown)))
    try:
        return _encode(codec.reply(0, await ask(codec.read(asked.fields))))
    except EverbellError as refused:
        return _encode(Answer(0, NOTHING, pack_error(refused)))


def unpack_answer(request: Request[A], packed: bytes) -> A:
    """The answer to a packed request. Raises the error that the other end raised."""
    reply = read_reply(packed)
    if reply.error is not None:
        raise unpack_error(reply.error)
    answer: A = CODECS[request.tag].read_answer(reply.result)
    return answer
