"""An invalid request is refused with the right status, the invalid field and a reason."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.api.api_caller import EVENTS, SOON, Caller, called

DEEP = b"[" * 100_000 + b"]" * 100_000
LONG = "x" * 513
UMLAUTS = "ü" * 257


def with_(**fields: Any) -> bytes:
    """A good event with something wrong about it."""
    return msgspec.json.encode({**SOON, **fields})


# The error, the body, the status, the field, and a part of the detail.
BAD_EVENTS: list[tuple[str, bytes, int, str | None, str]] = [
    ("nothing", b"", 400, None, "truncated"),
    ("no JSON", b"hello", 400, None, "malformed"),
    ("half an object", b'{"in": 1, "to"', 400, None, ""),
    ("something after it", b'{"in": 1, "to": "queue:a"} x', 400, None, "trailing"),
    ("a trailing comma", b'{"in": 1,}', 400, None, "malformed"),
    ("a byte order mark", b"\xef\xbb\xbf" + with_(), 400, None, "malformed"),
    ("no UTF-8 in a field", b'{"in": 1, "to": "queue:a", "key": "\xff"}', 400, None, "UTF-8"),
    ("no UTF-8 in the payload", b'{"in": 1, "to": "queue:a", "payload": "\xff\xfe"}', 400, None, "UTF-8"),
    ("half a surrogate pair", b'{"in": 1, "to": "queue:a", "key": "\\ud800"}', 400, None, ""),
    ("a line break in a string", b'{"in": 1, "to": "queue:a", "payload": "a\nb"}', 400, None, "malformed"),
    ("a bare word", b'{"in": 1, "to": "queue:a", "payload": NaN}', 400, None, "malformed"),
    ("a bomb", DEEP, 422, None, "expected an object, got an array"),
    ("a bomb in the payload", b'{"in": 1, "to": "queue:a", "payload": ' + DEEP + b"}", 400, None, "nested too deeply"),
    ("a bomb that does not end", b'{"payload": ' + b'{"a":' * 50_000, 400, None, "nested too deeply"),
    ("a deep payload", b'{"in": 1, "to": "queue:a", "payload": ' + b"[" * 65 + b"]" * 65 + b"}", 422, "payload", "64"),
    ("an array", b"[]", 422, None, "expected an object, got an array"),
    ("null", b"null", 422, None, "expected an object, got null"),
    ("a string", b'"x"', 422, None, "expected an object, got a string"),
    ("an unknown field", with_(kee="x"), 422, "kee", "did you mean key?"),
    ("a very unknown field", with_(zebra=1), 422, "zebra", "there is no such field"),
    ("a wrong case", with_(Payload=1), 422, "Payload", "did you mean payload?"),
    ("an unknown field inside", with_(retry={"max": 3}), 422, "retry.max", "no such field"),
    ("a close field inside", with_(retry={"backof": 3}), 422, "retry.backof", "did you mean backoff?"),
    ("a number as key", with_(key=5), 422, "key", "expected a string or null, got an integer"),
    ("an object as id", with_(id={}), 422, "id", "got an object"),
    ("a number as target", with_(to=7), 422, "to", "got an integer"),
    ("a boolean as duration", with_(**{"in": True}), 422, "in", "got true or false"),
    ("a list as duration", with_(**{"in": []}), 422, "in", "got an array"),
    ("a number as time", with_(at=1767225600, **{"in": None}), 422, "at", "expected a string"),
    ("headers in a list", with_(headers=["a"]), 422, "headers", "got an array"),
    ("a number as header", with_(headers={"a": 1}), 422, "headers", "expected a string, got an integer"),
    ("a tag that is no text", with_(tags=["a", 1]), 422, "tags[1]", "expected a string"),
    ("a text as tags", with_(tags="a"), 422, "tags", "got a string"),
    ("attempts as text", with_(retry={"max_attempts": "3"}), 422, "retry.max_attempts", "expected an integer"),
    ("a repeat without every", with_(repeat={"count": 3}), 422, "repeat.every", "is missing"),
    ("both at and in", with_(at="2026-02-01T00:00:00Z"), 422, "in", "either at or in"),
    ("neither at nor in", b'{"to": "queue:a"}', 422, "at", "give at"),
    ("at and in are null", b'{"to": "queue:a", "at": null, "in": null}', 422, "at", "give at"),
    ("no target", b'{"in": 1}', 422, "to", "is missing"),
    ("a time without offset", with_(at="2026-02-01T00:00:00", **{"in": None}), 422, "at", "has no offset"),
    ("a day that is none", with_(at="2026-02-30T00:00:00Z", **{"in": None}), 422, "at", "calendar"),
    ("no time at all", with_(at="tomorrow", **{"in": None}), 422, "at", "RFC 3339"),
    ("a time before 1970", with_(at="1969-12-31T23:59:59Z", **{"in": None}), 422, "at", "1970"),
    ("a time after 9999", with_(at="9999-12-31T23:59:59-01:00", **{"in": None}), 422, "at", ""),
    ("a duration beyond 9999", with_(**{"in": "999999999999w"}), 422, "in", "thousand years"),
    ("a negative duration", with_(**{"in": "-5s"}), 422, "in", "negative"),
    ("a negative number", with_(**{"in": -5}), 422, "in", "negative"),
    ("no duration", with_(**{"in": "soon"}), 422, "in", "is not a duration"),
    ("an empty duration", with_(**{"in": ""}), 422, "in", "is not a duration"),
    ("a huge number", b'{"in": ' + b"9" * 400 + b', "to": "queue:a"}', 422, "in", "thousand years"),
    ("a float beyond floats", b'{"in": 1e400, "to": "queue:a"}', 422, "in", "out of range"),
    ("a negative backoff", with_(retry={"backoff": "-1s"}), 422, "retry.backoff", "negative"),
    ("backoffs the wrong way", with_(retry={"backoff": "1h"}), 422, "retry.max_backoff", "shorter"),
    ("no attempts", with_(retry={"max_attempts": 0}), 422, "retry.max_attempts", ">= 1"),
    ("too many attempts", with_(retry={"max_attempts": 1001}), 422, "retry.max_attempts", "<= 1000"),
    ("half an attempt", with_(retry={"max_attempts": 1.5}), 422, "retry.max_attempts", "expected an integer"),
    ("a repeat without pause", with_(repeat={"every": 0}), 422, "repeat.every", "10ms"),
    ("a repeat of none", with_(repeat={"every": 1, "count": 0}), 422, "repeat.count", ">= 1"),
    ("a repeat of too many", with_(repeat={"every": 1, "count": 10**30}), 422, "repeat.count", ""),
    (
        "a repeat until before",
        with_(repeat={"every": 1, "until": "2025-01-01T00:00:00Z"}),
        422,
        "repeat.until",
        "before",
    ),
    ("it expires at once", with_(expires=0), 422, "expires", "longer than nothing"),
    ("an unknown scheme", with_(to="ftp://a.example/"), 422, "to", "is not a target"),
    ("a script as target", with_(to="javascript:alert(1)"), 422, "to", "is not a target"),
    ("a file as target", with_(to="file:///etc/passwd"), 422, "to", "is not a target"),
    ("a target without host", with_(to="https:///path"), 422, "to", "a host"),
    ("a target with a password", with_(to="https://u:p@a.example/"), 422, "to", "user name"),
    ("a target with a line break", with_(to="https://a.example/\r\nx: y"), 422, "to", "printable"),
    ("a target that is too long", with_(to="https://a.example/" + "x" * 2_048), 422, "to", "longer"),
    ("a port that is none", with_(to="https://a.example:99999/"), 422, "to", "ports go from"),
    ("a queue with a slash", with_(to="queue:a/b"), 422, "to", "queue name"),
    ("a handler", with_(to="handler:work"), 422, "to", "no handlers"),
    ("Kafka where there is none", with_(to="kafka://orders"), 422, "to", "--kafka-brokers"),
    ("an unknown Kafka cluster", with_(to="kafka://far/orders"), 422, "to", "kafka.clusters.far"),
    ("a topic that can be none", with_(to="kafka://a b"), 422, "to", "not a topic"),
    ("a header with a line break", with_(headers={"x-a": "b\r\nx-evil: 1"}), 422, "headers.x-a", "cannot carry"),
    ("a header with a zero", with_(headers={"x-a": "b\0"}), 422, "headers.x-a", "cannot carry"),
    ("a header name with a line break", with_(headers={"x-a\r\nx-b": "1"}), 422, "headers", "not a header name"),
    ("an empty header name", with_(headers={"": "1"}), 422, "headers", "not a header name"),
    ("a header of ours", with_(headers={"Host": "a"}), 422, "headers.Host", "by Everbell"),
    ("a header twice", with_(headers={"x-a": "1", "X-A": "2"}), 422, "headers", "twice"),
    ("too many headers", with_(headers={f"x-{i}": "" for i in range(33)}), 413, "headers", "32"),
    ("headers too large", with_(headers={"x-a": "b" * 200}), 413, "headers", "200"),
    ("an empty id", with_(id=""), 422, "id", "length"),
    ("an id that is too long", with_(id=LONG), 422, "id", "512"),
    ("an id with too many bytes", with_(id=UMLAUTS), 422, "id", "512 bytes"),
    ("an id with a zero", with_(id="a\0b"), 422, "id", "control"),
    ("an id with a line break", with_(id="a\nb"), 422, "id", "control"),
    ("an id like ours", with_(id="ev_1"), 422, "id", "made by Everbell"),
    ("an empty key", with_(key=""), 422, "key", "length"),
    ("a key that is too long", with_(key=LONG), 422, "key", "512"),
    ("a key with too many bytes", with_(key=UMLAUTS), 422, "key", "512 bytes"),
    ("a key with a control character", with_(key="a\x1bb"), 422, "key", "control"),
    ("an empty tag", with_(tags=[""]), 422, "tags[0]", "length"),
    ("a long tag", with_(tags=["x" * 65]), 422, "tags[0]", "64"),
    ("a tag with a control character", with_(tags=["a\tb"]), 422, "tags", "control"),
    ("too many tags", with_(tags=[str(i) for i in range(17)]), 413, "tags", "16"),
    ("a payload that is too large", with_(payload="x" * 1_000), 413, "payload", "1000"),
    ("bytes that are too many", with_(payload_base64="AAAA" * 400, content_type="a/b"), 413, "payload_base64", "1000"),
    ("bytes that are no base64", with_(payload_base64="???", content_type="a/b"), 422, "payload_base64", "base64"),
    ("bytes without a type", with_(payload_base64="AAAA"), 422, "content_type", "needs a content type"),
    ("a type without bytes", with_(content_type="a/b"), 422, "content_type", "goes with"),
    ("a type with a line break", with_(payload_base64="AA==", content_type="a/b;\r\nx"), 422, "content_type", ""),
    ("payload and bytes", with_(payload=1, payload_base64="AA==", content_type="a/b"), 422, "payload_base64", "either"),
    ("no trace", with_(traceparent="00-0-0-0"), 422, "traceparent", "W3C"),
]

BAD_CHANGES: list[tuple[bytes, int, str | None]] = [
    (b"", 400, None),
    (b"{}", 422, None),
    (b"[]", 422, None),
    (b'{"key": "x"}', 422, "key"),
    (b'{"id": "x"}', 422, "id"),
    (b'{"at": null}', 422, "at"),
    (b'{"at": "2026-01-01T00:00:00Z", "in": 1}', 422, "in"),
    (b'{"to": ""}', 422, "to"),
    (b'{"to": "ftp:x"}', 422, "to"),
    (b'{"retry": {"max_attempts": 0}}', 422, "retry.max_attempts"),
    (b'{"payload": "' + b"x" * 1_000 + b'"}', 413, "payload"),
]

BAD_TARGETS: list[tuple[str, str, bytes, int, str | None]] = [
    ("GET", f"{EVENTS}?limit=0", b"", 422, "limit"),
    ("GET", f"{EVENTS}?limit=1001", b"", 422, "limit"),
    ("GET", f"{EVENTS}?limit=ten", b"", 422, "limit"),
    ("GET", f"{EVENTS}?limit=", b"", 422, "limit"),
    ("GET", f"{EVENTS}?limit=1&limit=2", b"", 422, "limit"),
    ("GET", f"{EVENTS}?status=asleep", b"", 422, "status"),
    ("GET", f"{EVENTS}?from=yesterday", b"", 422, "from"),
    ("GET", f"{EVENTS}?until=2026-01-01", b"", 422, "until"),
    ("GET", f"{EVENTS}?cursor=nonsense", b"", 422, "cursor"),
    ("GET", f"{EVENTS}?cursor=%C3%BC", b"", 422, "cursor"),
    ("GET", f"{EVENTS}?cursor=", b"", 422, "cursor"),
    ("GET", f"{EVENTS}?key=a%00b", b"", 422, "key"),
    ("GET", f"{EVENTS}?key=", b"", 422, "key"),
    ("GET", f"{EVENTS}?tag={'x' * 65}", b"", 422, "tag"),
    ("GET", f"{EVENTS}?colour=red", b"", 422, "colour"),
    ("GET", "/v1/tenants/shop/dead?status=dead", b"", 422, "status"),
    ("DELETE", EVENTS, b"", 422, "key"),
    ("DELETE", f"{EVENTS}?status=scheduled", b"", 422, "status"),
    ("DELETE", f"{EVENTS}?key=a&key=b", b"", 422, "key"),
    ("GET", f"{EVENTS}/a%00b", b"", 422, "id"),
    ("GET", f"{EVENTS}/{LONG}", b"", 422, "id"),
    ("DELETE", f"{EVENTS}/a%0Ab", b"", 422, "id"),
    ("POST", f"{EVENTS}/one/deliver?dry_run=maybe", b"", 422, "dry_run"),
    ("PUT", f"{EVENTS}/one", with_(id="two"), 422, "id"),
    ("PUT", f"{EVENTS}/{LONG}", with_(), 422, "id"),
    ("POST", "/v1/tenants/shop/dead/redrive", b"{}", 422, "ids"),
    ("POST", "/v1/tenants/shop/dead/redrive", b'{"ids": []}', 422, "ids"),
    ("POST", "/v1/tenants/shop/dead/redrive", b'{"ids": ["a"], "all": true}', 422, "ids"),
    ("POST", "/v1/tenants/shop/dead/redrive", b'{"ids": ["a", 2]}', 422, "ids[1]"),
    ("POST", "/v1/tenants/shop/dead/redrive", b'{"key": "k"}', 422, "ids"),
    ("POST", "/v1/tenants/shop/queues/a%20b/lease", b"{}", 422, "queue"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"limit": 0}', 422, "limit"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"limit": 1001}', 422, "limit"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"wait": "61s"}', 422, "wait"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"wait": 1e308}', 422, "wait"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"wait": -1}', 422, "wait"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"lease": 0}', 422, "lease"),
    ("POST", "/v1/tenants/shop/queues/work/lease", b'{"lease": "2d"}', 422, "lease"),
    ("POST", "/v1/tenants/shop/queues/work/ack", b"{}", 422, "leases"),
    ("POST", "/v1/tenants/shop/queues/work/ack", b'{"leases": []}', 422, "leases"),
    ("POST", "/v1/tenants/shop/queues/work/extend", b'{"leases": ["a"]}', 422, "lease"),
    ("POST", "/v1/tenants/shop/queues/work/fail", b'{"leases": ["a"]}', 422, "leases[0]"),
    (
        "POST",
        "/v1/tenants/shop/queues/work/fail",
        b'{"leases": [{"lease": "a", "retry_after": "x"}]}',
        422,
        "leases[0].retry_after",
    ),
]


@pytest.mark.parametrize(
    ("body", "status", "field", "detail"), [bad[1:] for bad in BAD_EVENTS], ids=[b[0] for b in BAD_EVENTS]
)
def test_a_bad_event(body: bytes, status: int, field: str | None, detail: str) -> None:
    async def test(caller: Caller) -> None:
        for method, target in (("POST", EVENTS), ("PUT", f"{EVENTS}/one")):
            if method == "PUT" and field == "id":
                continue
            answer = await caller.call(method, target, body)
            assert (answer.status, answer.json.get("field")) == (status, field), answer.body
            assert answer.content_type == "application/problem+json"
            assert detail in answer.json["detail"]
            assert answer.json["status"] == status
        assert (await caller.call("GET", EVENTS)).json == {"events": []}

    called(test)


@pytest.mark.parametrize(("body", "status", "field"), BAD_CHANGES)
def test_a_bad_change(body: bytes, status: int, field: str | None) -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        answer = await caller.call("PATCH", f"{EVENTS}/one", body)
        assert (answer.status, answer.json.get("field")) == (status, field), answer.body
        assert (await caller.call("GET", f"{EVENTS}/one")).json["version"] == 1

    called(test)


@pytest.mark.parametrize(("method", "target", "body", "status", "field"), BAD_TARGETS)
def test_a_bad_request(method: str, target: str, body: bytes, status: int, field: str | None) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call(method, target, body)
        assert (answer.status, answer.json.get("field")) == (status, field), answer.body

    called(test)


def test_a_number_that_overflows() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        for fields in (
            {"in": 1e308},
            {"expires": 1e308},
            {"retry": {"max_backoff": 1e308}},
            {"repeat": {"every": 1e308}},
        ):
            for method, target in (("POST", EVENTS), ("PATCH", f"{EVENTS}/one")):
                body = fields if method == "PATCH" else {**SOON, **fields}
                assert (await caller.call(method, target, body)).status == 422

    called(test)


def test_a_wrong_choice_is_told_the_choices() -> None:
    async def test(caller: Caller) -> None:
        detail = (await caller.call("GET", f"{EVENTS}?status=asleep")).json["detail"]
        assert "scheduled" in detail
        assert "delivered" in detail

    called(test)


def test_beyond_the_horizon_of_the_tenant() -> None:
    async def test(caller: Caller) -> None:
        for field, value in (("in", "2m"), ("at", "2027-01-01T00:00:00Z")):
            answer = await caller.call("POST", "/v1/tenants/near/events", {field: value})
            assert (answer.status, answer.json["field"]) == (422, field)

    called(test)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("APPLICATION/JSON", 201),
        ("application/cloudevents+json", 201),
        ("text/json", 201),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/x-ndjson", 415),
        ("application/jsonx", 415),
        ("", 415),
    ],
)
def test_a_body_is_json(content_type: str, status: int) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", EVENTS, SOON, content_type=content_type)
        assert answer.status == status
        if status == 415:
            assert answer.json["field"] == "content-type"

    called(test)


def test_a_compressed_body_is_not_read() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", EVENTS, SOON, content_encoding="gzip")
        assert (answer.status, answer.json["field"]) == (415, "content-encoding")
        assert (await caller.call("POST", EVENTS, SOON, content_encoding="identity")).status == 201

    called(test)


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
FIELDS = (
    "payload to at in id key headers tags retry repeat expires content_type payload_base64 traceparent lease leases ids"
)
NEARLY = st.dictionaries(
    st.sampled_from(FIELDS.split()),
    JSONISH
    | st.sampled_from(["queue:a", "https://a.example/", "2026-02-01T00:00:00Z", "5s", "1h", 1, "AA==", "a/b"])
    | st.fixed_dictionaries({"every": st.sampled_from(["5s", 0.5, 1e300]), "count": st.integers()})
    | st.fixed_dictionaries({"max_attempts": st.integers(), "backoff": st.floats(), "max_backoff": st.floats()}),
    max_size=5,
)


def encoded(value: Any) -> bytes:
    # Not by msgspec, which refuses integers beyond 64 bits; others may well send them.
    return json.dumps(value).encode("utf-8", "surrogatepass")


BODIES = (
    st.binary(max_size=100)
    | st.builds(encoded, JSONISH)
    | st.builds(encoded, NEARLY)
    | st.builds(encoded, st.lists(NEARLY, max_size=4))
    | st.builds(b"\n".join, st.lists(st.builds(encoded, NEARLY) | st.binary(max_size=20), max_size=4))
)
PLACES = st.sampled_from(
    [
        ("POST", EVENTS),
        ("PUT", f"{EVENTS}/one"),
        ("PATCH", f"{EVENTS}/one"),
        ("POST", f"{EVENTS}/batch"),
        ("POST", "/v1/tenants/shop/dead/redrive"),
        ("POST", "/v1/tenants/shop/queues/a/ack"),
        ("POST", "/v1/tenants/shop/queues/a/extend"),
        ("POST", "/v1/tenants/shop/queues/a/fail"),
    ]
)


@given(st.lists(st.tuples(PLACES, BODIES), min_size=1, max_size=8))
def test_no_body_makes_the_server_fail(requests: list[tuple[tuple[str, str], bytes]]) -> None:
    async def test(caller: Caller) -> None:
        for (method, target), body in requests:
            answer = await caller.call(method, target, body)
            assert answer.status < 500, answer.body
            assert answer.json is not None

    called(test)


QUERY_FIELDS = st.builds(
    "{}={}".format,
    st.sampled_from(["limit", "key", "tag", "from", "until", "status", "cursor"]),
    st.text("a1%-", max_size=5),
)
QUERY_TEXT = st.text("abc=&%+;/?#\u00fc\0 0123456789", max_size=30) | st.builds("&".join, st.lists(QUERY_FIELDS))


@given(st.sampled_from(["GET", "DELETE"]), QUERY_TEXT)
def test_no_query_makes_the_server_fail(method: str, query: str) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call(method, f"{EVENTS}?{query}")
        assert answer.status < 500, answer.body

    called(test)
