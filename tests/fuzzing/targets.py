"""The functions that get arbitrary bytes. Each raises only if Everbell has a fault.

Expected refusals are caught by their type, so any other exception is a finding. Some targets compare two ways of
reading the same bytes, which finds more than crashes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Raw

from everbell.clock import SystemClock
from everbell.core.cluster import decode_command, decode_value
from everbell.core.kafka_targets import KafkaTargets
from everbell.core.spec import ChangeSpec, EventSpec
from everbell.core.tenant import Tenants
from everbell.core.timetable import timetable_of
from everbell.edge.array_split import is_array, split_array
from everbell.edge.batch_body import NotPlain, read_batch, read_plain
from everbell.edge.bodies import Body
from everbell.edge.drafting import Edge
from everbell.errors import EverbellError, InvalidInput, LogError
from everbell.http.address_guard import Guard, RefusedAddress
from everbell.http.body_budget import BodyBudget
from everbell.http.head_cache import HeadCache
from everbell.http.limits import ServerLimits
from everbell.http.message import HttpRequest
from everbell.http.request_reader import Refused, RequestReader
from everbell.links.frames import Frames
from everbell.links.wire import CODECS, read_asked
from everbell.logs.local_file import LocalFile
from everbell.stores.rows import BadRow, read_event, read_record

_LIMITS = ServerLimits(body_bytes_max=4_000, header_bytes_max=500, request_line_bytes_max=200)
_EDGE = Edge(Tenants(), SystemClock(), allows_handlers=False, kafka=KafkaTargets(frozenset({""})))
_EVENT, _CHANGE = Body(EventSpec), Body(ChangeSpec)
_NOW_S = 1_767_225_600


class _Client:
    """The connection of a reader."""

    gone = False
    is_answering = False


def http_reader(data: bytes) -> None:
    """The requests in a stream, and the refusal that ends it, do not depend on how the stream is cut."""
    cut, stream = (data[0] % 7 + 1 if data else 1), data[1:]
    whole = _requests([stream])
    pieces = _requests([stream[start : start + cut] for start in range(0, len(stream), cut)])
    assert whole[0][: len(pieces[0])] == pieces[0] or pieces[0][: len(whole[0])] == whole[0], (whole, pieces)
    if whole[1] is None and pieces[1] is None:
        assert whole[0] == pieces[0], (whole, pieces)


def _requests(pieces: Sequence[bytes]) -> tuple[list[tuple[str, str, dict[str, str], bytes]], int | None]:
    found: list[tuple[str, str, dict[str, str], bytes]] = []

    def take(request: HttpRequest, connection: bytes) -> None:
        found.append((request.method, request.raw_path, dict(request.headers), request.body))

    budget = BodyBudget(_LIMITS.bodies_bytes_max)
    reader = RequestReader(_LIMITS, HeadCache(), budget, _Client(), "192.0.2.1", lambda: 0.0, take, lambda _: "")
    try:
        for piece in pieces:
            reader.feed(piece)
    except Refused as refused:
        return found, refused.status
    return found, None


def spec(data: bytes) -> None:
    """An event or a change is accepted or refused, and an accepted one has no key twice."""
    for body in (_EVENT, _CHANGE):
        try:
            read = body.parse(data)
        except InvalidInput:
            continue
        _check_keys(data)
        try:
            if isinstance(read, EventSpec):
                _EDGE.draft(read, "shop")
            else:
                _EDGE.amendment(read, "shop")
        except InvalidInput:
            pass


def _check_keys(text: bytes) -> None:
    def checked(pairs: list[tuple[str, object]]) -> dict[str, object]:
        return {"": len({name for name, _ in pairs}) < len(pairs), **dict(pairs)}

    with suppress(ValueError, RecursionError):  # Python's own decoder knows fewer numbers, and less depth.
        assert json.loads(text, object_pairs_hook=checked)[""] is False, text


def batch(data: bytes) -> None:
    """Both ways of reading a batch agree, and an array is split as the decoder splits it."""
    try:
        plain = [spec for _, specs in read_plain(data) for spec in specs]
    except NotPlain:
        plain = None
    try:
        items = [item for item in read_batch(data, 1_000) if item is not None]
    except InvalidInput:
        items = []
    if plain:
        assert [(item.to, item.at, bytes(item.payload)) for item in items if not isinstance(item, InvalidInput)] == [
            (spec.to, spec.at, bytes(spec.payload)) for spec in plain
        ], data
    if is_array(data):
        _check_split(data)


def _check_split(data: bytes) -> None:
    try:
        expected = [bytes(text).strip() for text in msgspec.json.decode(data, type=list[Raw])]
    except (msgspec.DecodeError, RecursionError):
        expected = None
    try:
        split = [text.strip() for text in split_array(data, 100_000)]
    except (msgspec.DecodeError, InvalidInput, RecursionError):
        split = None
    assert split == expected, data


def cron(data: bytes) -> None:
    """An expression is refused, or its times are in order, and counting them agrees with listing them."""
    text = data.decode("latin-1")
    zone = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York")[len(text) % 4]
    try:
        timetable = timetable_of(text, zone, "after" if len(text) % 3 else "skip", None)
    except InvalidInput:
        return
    times: list[int] = []
    at_s: int | None = _NOW_S
    while at_s is not None and len(times) < 10:
        before_s = at_s
        at_s, _ = timetable.after(before_s)
        if at_s is not None:
            assert at_s > before_s, text
            times.append(at_s)
    if times:
        assert timetable.count(_NOW_S, times[-1]) == len(times), text


def link(data: bytes) -> None:
    """A stream from another process is cut into frames, and each frame is a request or an error."""

    class Reading(Frames):
        def frame(self, frame: memoryview) -> None:
            asked = read_asked(frame)
            codec = CODECS.get(asked.tag)
            if codec is not None:
                codec.read(asked.fields)

    async def feed() -> None:
        frames = Reading()
        try:
            frames.data_received(data)
            # The same again as one frame, because a fuzzer seldom finds the right length.
            frames.frame(memoryview(data))
        except (msgspec.MsgspecError, EverbellError, UnicodeDecodeError):
            pass

    asyncio.run(feed())


def log(data: bytes) -> None:
    """An entry of the cluster's log and a snapshot are read, or refused with an error of the log."""
    for decode in (decode_command, decode_value):
        with suppress(EverbellError, msgspec.MsgspecError):
            decode(data)


def log_file(data: bytes) -> None:
    """A damaged file of the local log is refused, or read up to its unfinished end."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "entries").write_bytes(data)
        with suppress(LogError):
            LocalFile(Path(folder)).close()


def rows(data: bytes) -> None:
    """A stored row is read, or is a bad row."""
    for read in (read_event, read_record):
        with suppress(BadRow):
            read(data)


def addresses(data: bytes) -> None:
    """A text is refused as an address, or is one."""
    with suppress(RefusedAddress):
        Guard().check(data.decode("latin-1"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "http_reader": http_reader,
    "spec": spec,
    "batch": batch,
    "cron": cron,
    "link": link,
    "log": log,
    "log_file": log_file,
    "rows": rows,
    "addresses": addresses,
}
