"""Bytes become requests, however they are cut; bytes that are not plainly a request are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.http import head_cache as heads
from everbell.http.body_budget import BodyBudget
from everbell.http.head_cache import HeadCache
from everbell.http.limits import ServerLimits
from everbell.http.message import CLOSE, KEEP_ALIVE, HttpRequest
from everbell.http.request_reader import Refused, RequestReader

# One of everything that is valid; the last one closes.
STREAM = (
    b"GET /a?x=1 HTTP/1.1\r\nHost: h\r\n\r\n"
    b"\r\nPOST /b%20c HTTP/1.1\r\nhost: h\r\nContent-Length: 5\r\nX-Empty:\r\nX-Two: 1\r\nx-two: 2\r\n\r\nhe\r\n\r"
    b"POST /chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nAuthorization: trailer\r\nX-Last: 1\r\n\r\n"
    b"POST /upgrade HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Length: 3\r\n\r\nxyz"
    b"HEAD /h HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    b"PUT /expects HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok"
    b"GET http://h/absolute?y=2 HTTP/1.1\r\nHost: h\r\nUser-Agent: caf\xe9\r\n\r\n"
    b"DELETE /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
)

Read = tuple[str, str, str, dict[str, str], dict[str, str], bytes, bytes]


class Reading:
    """A reader, its requests, and a clock that counts calls."""

    gone = False
    is_answering = False

    def __init__(self, limits: ServerLimits | None = None, known: HeadCache | None = None) -> None:
        self.requests: list[Read] = []
        self.known = HeadCache() if known is None else known
        limits = limits or ServerLimits()
        held = BodyBudget(limits.bodies_bytes_max)
        self.reader = RequestReader(limits, self.known, held, self, "192.0.2.7", lambda: 5.0, self._take, lambda _: "")

    def _take(self, request: HttpRequest, connection: bytes) -> None:
        assert request.peer == "192.0.2.7"
        self.requests.append(
            (
                request.method,
                request.raw_path,
                request.path,
                request.query,
                dict(request.headers),
                request.body,
                connection,
            )
        )
        request.headers["mutated"] = "by the handler"

    def feed(self, *pieces: bytes) -> list[Read]:
        for piece in pieces:
            self.reader.feed(piece)
        return self.requests


def refusal_of(data: bytes, limits: ServerLimits | None = None) -> int:
    """The status with which `data` is refused, which must not depend on how it is cut."""
    statuses = []
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        with pytest.raises(Refused) as caught:
            Reading(limits).feed(*pieces)
        assert caught.value.detail.endswith(".")
        statuses.append(caught.value.status)
    assert len(set(statuses)) == 1, statuses
    return statuses[0]


def test_requests_are_read_as_they_were_meant() -> None:
    read = Reading().feed(STREAM)
    assert [(method, path, body, connection) for method, _, path, _, _, body, connection in read] == [
        ("GET", "/a", b"", b""),
        ("POST", "/b c", b"he\r\n\r", b""),
        ("POST", "/chunks", b"abcde", b""),
        ("POST", "/upgrade", b"xyz", KEEP_ALIVE),
        ("HEAD", "/h", b"", KEEP_ALIVE),
        ("PUT", "/expects", b"ok", b""),
        ("GET", "/absolute", b"", b""),
        ("DELETE", "/last", b"", CLOSE),
    ]
    assert read[0][3] == {"x": "1"}
    assert read[1][4] == {"host": "h", "content-length": "5", "x-empty": "", "x-two": "1, 2"}
    assert read[2][4] == {"host": "h", "transfer-encoding": "chunked"}, "trailers are no headers"
    assert "upgrade" not in read[3][4]
    assert read[6][3] == {"y": "2"}
    assert read[6][4]["user-agent"] == "caf\xe9"


def test_a_cut_at_any_byte_changes_nothing() -> None:
    whole = Reading().feed(STREAM)
    for cut in range(1, len(STREAM)):
        assert Reading().feed(STREAM[:cut], STREAM[cut:]) == whole, f"cut at {cut}"


def test_bytes_may_come_one_by_one() -> None:
    assert Reading().feed(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == Reading().feed(STREAM)


@given(cuts=st.lists(st.integers(0, len(STREAM))), views=st.booleans())
def test_any_cutting_changes_nothing_even_when_heads_are_known(cuts: list[int], views: bool) -> None:
    known = HeadCache()
    bounds = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(bounds)]
    for _ in range(2):
        reading = Reading(known=known)
        for piece in pieces:
            reading.reader.feed(memoryview(piece) if views else piece)
        assert reading.requests == Reading().feed(STREAM)


def test_bytes_behind_a_request_that_closes_are_ignored() -> None:
    reading = Reading()
    reading.feed(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /more HTTP/1.1\r\n", b"\x00garbage")
    assert len(reading.requests) == 1
    assert reading.reader.ended


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GARBAGE / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x00c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: miracles\r\n\r\n", 417),
        (b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"GET / HTTP/2.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / RTSP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / RTSP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n", 400),
        (b"OPTIONS * RTSP/1.0\r\nHost: h\r\nCSeq: 1\r\n\r\n", 400),
        (b"DESCRIBE / RTSP/1.0\r\nHost: h\r\n\r\n", 400),
        (b"SOURCE / ICE/1.0\r\nHost: h\r\n\r\n", 400),
        (b"POST / RTSP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 400),
    ],
)
def test_bytes_that_are_not_plainly_valid_are_refused(data: bytes, status: int) -> None:
    assert refusal_of(data) == status
    reading = Reading()
    with pytest.raises(Refused) as caught:
        reading.feed(*(data[index : index + 1] for index in range(len(data))))
    assert caught.value.status == status, "it makes no difference that the bytes came one by one"


def test_pipelined_requests_of_another_protocol_are_refused_too() -> None:
    reading = Reading()
    with pytest.raises(Refused) as caught:
        reading.feed(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b RTSP/1.1\r\nHost: h\r\n\r\n")
    assert caught.value.status == 400


def test_http_1_0_needs_no_host() -> None:
    assert len(Reading().feed(b"GET / HTTP/1.0\r\n\r\n")) == 1


# Limits.

SMALL = ServerLimits(body_bytes_max=10, header_bytes_max=100, request_line_bytes_max=50)


def test_a_body_is_refused_by_its_announcement() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    assert refusal_of(head % 11, SMALL) == 413
    assert len(Reading(SMALL).feed(head % 10 + b"x" * 10)) == 1


def test_a_chunked_body_is_refused_when_it_passes_the_limit() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert refusal_of(head + b"6\r\nabcdef\r\n5\r\nghijk", SMALL) == 413
    assert refusal_of(head + b"b\r\nabcdefghijk", SMALL) == 413
    assert len(Reading(SMALL).feed(head + b"6\r\nabcdef\r\n4\r\nghij\r\n0\r\n\r\n")) == 1


def test_headers_have_a_limit_together() -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: b\r\n" * 14 + b"%b: 1\r\n\r\n"
    assert len(Reading(SMALL).feed(head % b"C")) == 1  # 9 + 14 * 6 + 6 = 99
    assert refusal_of(head % b"CCC", SMALL) == 431


def test_a_header_that_never_ends_is_refused() -> None:
    reading = Reading(SMALL)
    reading.feed(b"GET / HTTP/1.1\r\nHost: h\r\nX-Long: ")
    with pytest.raises(Refused) as caught:
        reading.feed(*[b"x"] * 1000)
    assert caught.value.status == 431


@pytest.mark.parametrize("beginning", [b"1;ext=", b"0\r\nX-Trailer: "])
def test_a_chunked_body_hides_nothing_that_never_ends(beginning: bytes) -> None:
    reading = Reading(SMALL)
    reading.feed(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + beginning)
    with pytest.raises(Refused) as caught:
        reading.feed(*[b"x"] * 1000)
    assert caught.value.status == 431


def test_endless_trailers_are_refused() -> None:
    reading = Reading(SMALL)
    reading.feed(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    with pytest.raises(Refused) as caught:
        reading.feed(*[b"T: v\r\n"] * 1000)
    assert caught.value.status == 431


def test_a_long_body_in_small_pieces_is_no_long_header() -> None:
    limits = ServerLimits(body_bytes_max=5000, header_bytes_max=100, request_line_bytes_max=50)
    reading = Reading(limits)
    reading.feed(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n", *[b"xy"] * 2500)
    assert len(reading.requests[0][5]) == 5000


def test_a_target_has_a_limit() -> None:
    line = b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n"
    assert len(Reading(SMALL).feed(line % (b"a" * 49))) == 1
    assert refusal_of(line % (b"a" * 50), SMALL) == 414


# The attributes that the connection reads.


def test_a_reader_says_whether_a_request_is_on_its_way() -> None:
    reading = Reading()
    states = []
    for piece in (b"\r\n", b"G", b"ET / HTTP/1.1\r\nHost: h\r\n", b"\r\n", b"\r\n"):
        reading.feed(piece)
        states.append(reading.reader.in_message)
    assert states == [False, True, True, False, False]
    assert reading.reader.began_s == 5.0


def test_a_client_that_waits_is_seen_until_its_body_comes() -> None:
    reading = Reading()
    reading.feed(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n")
    assert reading.reader.awaits_continue
    reading.feed(b"ok")
    assert not reading.reader.awaits_continue


def test_an_expectation_of_http_1_0_is_ignored() -> None:
    reading = Reading()
    reading.feed(b"PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert not reading.reader.awaits_continue


# Heads that were seen before.


def test_a_known_head_gives_the_same_request_with_a_new_body() -> None:
    head = b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 8\r\n\r\n"
    reading = Reading()
    sent = [b"one\r\n\r\n!", b"two\r\n\r\n!", b"3rd\r\n\r\n!"]
    read = reading.feed(*(head + body for body in sent))
    assert len(reading.known) == 1
    assert [request[5:] for request in read] == [(body, KEEP_ALIVE) for body in sent]
    assert read[0][:5] == read[1][:5] == read[2][:5]


def test_a_known_head_waits_for_the_whole_of_its_body() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
    reading = Reading()
    reading.feed(head + b"one", head, b"t", b"wo", head + b"3rdGET / HTTP/1.1\r\n", b"Host: h\r\n\r\n", head + b"5th")
    assert [read[5] for read in reading.requests] == [b"one", b"two", b"3rd", b"", b"5th"]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 2,
        b"GET / HTTP/1.1\r\nHost: h\r\nX-Long: " + b"x" * heads.HEAD_BYTES_MAX + b"\r\n\r\n",
    ],
    ids=["closes", "chunked", "two", "long"],
)
def test_only_plain_heads_are_learned(data: bytes) -> None:
    reading = Reading()
    reading.feed(data)
    assert not reading.known


def test_the_number_of_known_heads_is_bounded() -> None:
    reading = Reading()
    for number in range(heads.HEADS_MAX + 10):
        reading.feed(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
    assert len(reading.known) == 10
