"""Nodes of the previous version read our frames, and we read theirs: the bytes are the same.

`peer_frames.json` was written by the code of that version (commit fc1f7ab): one frame for every request that nodes ask
of each other, and one for its answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from everbell.core.amendment import Amendment
from everbell.core.event import Repeat
from everbell.core.request import Request, requests_of
from everbell.core.retry import RetryPolicy
from everbell.engine.replica_requests import ReplicaRequest
from everbell.engine.requests import Amend, GetLine
from everbell.engine.seen import KeyLine
from everbell.errors import EverbellError, InvalidInput, NotOwner
from everbell.links.wire import CODECS, NOTHING, Answer, RequestFrame, pack_error, unpack_error
from tests.unit.links.test_link import ENDED, EXAMPLES, SEEN

NEWER = {
    "count_killed",
    "queues",
    "targets",
    "past",
    "items",
    "explain",
    "blocked_keys",
    *(kind.tag for kind in requests_of(ReplicaRequest)),
}
"""The requests that the previous version does not know. Its nodes refuse them, and have done nothing."""
FRAMES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("peer_frames.json").read_text())
_ALL_FIELDS = Amendment(
    due_at=7,
    repeat=Repeat(1_000),
    to="queue:b",
    payload=b"[]",
    content_type=None,
    headers=(("x-a", "b"),),
    tags=("t",),
    retry=RetryPolicy(3),
    expires_ms=9,
    paused=True,
    note="why",
)


def _is_old(request: Request[Any]) -> bool:
    return request.for_peers and request.tag not in NEWER


ASKED: dict[str, tuple[Request[Any], Any]] = {
    **{request.tag: (request, answer) for request, answer in reversed(EXAMPLES) if _is_old(request)},
    "get": (CODECS["get"].kind("shop", "order-17"), SEEN),
    "get ended": (CODECS["get"].kind("shop", "order-17"), ENDED),
    "change": (Amend("shop", "order-17", _ALL_FIELDS, None), SEEN),
    "change shift": (Amend("shop", "order-17", Amendment(shift_ms=-5, latest_at=70), 3), SEEN),
    "change nothing left": (Amend("shop", "order-17", Amendment(repeat=None, retry=None, expires_ms=None), 3), SEEN),
    "line empty": (GetLine("shop", "k"), KeyLine(None, 0, False)),
}


def is_longer_at_most(ours: object, old: bytes) -> bool:
    """Whether our bytes are those of the previous version, but for fields at the ends of arrays, which it ignores."""

    def extends(new: object, known: object) -> bool:
        if isinstance(new, list) and isinstance(known, list):
            return len(new) >= len(known) and all(map(extends, new, known))
        if isinstance(new, dict) and isinstance(known, dict):
            return new.keys() == known.keys() and all(extends(new[key], known[key]) for key in known)
        return new == known

    return extends(msgspec.msgpack.decode(msgspec.msgpack.encode(ours)), msgspec.msgpack.decode(old))


def _bytes(frame: str) -> bytes:
    raw = bytes.fromhex(frame)
    assert int.from_bytes(raw[:4]) == len(raw) - 4
    return raw[4:]


def test_every_request_of_peers_has_frames_of_the_previous_version() -> None:
    assert {kind.tag for kind in requests_of(Request) if kind.for_peers} - NEWER == {
        name.partition(" ")[0] for name in FRAMES if "ask" in FRAMES[name]
    }
    assert {name for name in FRAMES if "ask" in FRAMES[name]} == ASKED.keys()


@pytest.mark.parametrize("name", ASKED)
def test_a_request_has_the_bytes_of_the_previous_version(name: str) -> None:
    request, _ = ASKED[name]
    old = _bytes(FRAMES[name]["ask"])

    assert is_longer_at_most(CODECS[request.tag].message(1, request), old)
    asked = msgspec.msgpack.decode(old, type=RequestFrame)
    assert CODECS[asked.tag].read(asked.fields) == request


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_has_the_bytes_of_the_previous_version(name: str) -> None:
    request, answer = ASKED[name]
    old = _bytes(FRAMES[name]["answer"])

    assert is_longer_at_most(CODECS[request.tag].reply(1, answer), old)
    read = CODECS[request.tag].read_answer(msgspec.msgpack.decode(old, type=Answer).result)
    if name == "schedule":
        assert (read[:2], pack_error(read[2])) == (answer[:2], pack_error(answer[2]))
    else:
        assert read == answer


@pytest.mark.parametrize(
    ("name", "error"), [("error", NotOwner("moving")), ("error with a field", InvalidInput("is wrong", "at"))]
)
def test_an_error_has_the_bytes_of_the_previous_version(name: str, error: EverbellError) -> None:
    old = _bytes(FRAMES[name]["answer"])

    assert msgspec.msgpack.encode(Answer(1, NOTHING, pack_error(error))) == old
    packed = msgspec.msgpack.decode(old, type=Answer).error
    assert packed is not None
    read = unpack_error(packed)
    assert (type(read), str(read)) == (type(error), str(error))


def test_fields_that_the_next_version_adds_at_the_end_are_ignored() -> None:
    fields = Raw(msgspec.msgpack.encode(["shop", "order-17", None, "of the future"]))

    assert CODECS["cancel"].read(fields) == CODECS["cancel"].kind("shop", "order-17", None)
