"""Which calls are repeated, after which pause, and the meaning of the last outcome."""

from __future__ import annotations

import msgspec
import pytest

from everbell.client.call import PAUSE_S_MAX, Call, Lost, Persistence, Reply, conclude, doubling, in_doubt
from everbell.errors import Overloaded, Unreachable

SERVER = "http://bell"
PATIENT = Persistence(lambda failures: failures / 10, attempts_max=3)

UNSENT = Lost("connection refused", sent=False)
SENT = Lost("connection reset", sent=True)
TIMED_OUT = Lost("no answer within 10 s", sent=True, final=True)


def call(*, repeatable: bool, method: str = "POST", path: str = "/v1/tenants/t/events") -> Call[bytes]:
    return Call(method, path, lambda status, body: body, repeatable=repeatable)


def busy(retry_after: str | None = None) -> Reply:
    return Reply(503, {} if retry_after is None else {"retry-after": retry_after}, b"")


@pytest.mark.parametrize(
    ("repeatable", "outcome", "pause_s"),
    [
        (True, Reply(200, {}, b""), None),
        (True, Reply(500, {}, b""), None),
        (True, UNSENT, 0.1),
        (False, UNSENT, 0.1),
        (True, SENT, 0.1),
        (False, SENT, None),
        (True, TIMED_OUT, None),
        (True, busy(), 0.1),
        (True, busy("2"), 2.0),
        (True, Reply(429, {"retry-after": "1"}, b""), 1.0),
        (True, busy(str(int(PAUSE_S_MAX) + 1)), None),
        (True, busy("Fri, 20 Nov 2026 10:00:00 GMT"), 0.1),
        (False, busy("1"), None),
    ],
)
def test_a_call_is_repeated_only_where_that_is_safe(
    repeatable: bool, outcome: Reply | Lost, pause_s: float | None
) -> None:
    assert PATIENT.pause_s(call(repeatable=repeatable), 1, outcome) == pause_s


def test_patience_ends() -> None:
    asked = call(repeatable=True)
    assert [PATIENT.pause_s(asked, attempt, SENT) for attempt in (1, 2, 3)] == [0.1, 0.2, None]


def test_pauses_double_up_to_the_longest_and_are_spread_downwards() -> None:
    assert [doubling(0.1, 1.0, lambda: 0.0)(n) for n in (1, 2, 3, 4, 5, 1_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert doubling(1.0, 9.0, lambda: 0.5)(1) == 0.75


def test_a_result_is_parsed_and_an_error_is_raised() -> None:
    assert conclude(call(repeatable=True), Reply(201, {}, b"fine"), SERVER) == b"fine"
    body = b'{"type": "https://everbell.dev/problems/overloaded", "detail": "too much"}'
    with pytest.raises(Overloaded, match="too much") as raised:
        conclude(call(repeatable=True), Reply(503, {"retry-after": "7"}, body), SERVER)
    assert raised.value.retry_after_s == 7


def test_an_answer_that_is_not_ours_says_so() -> None:
    asked = Call("GET", "/", lambda status, body: msgspec.json.decode(body))
    with pytest.raises(Unreachable, match=r"does not answer like an Everbell server.*check the address"):
        conclude(asked, Reply(200, {}, b"<html>"), SERVER)


@pytest.mark.parametrize(
    ("asked", "lost", "says"),
    [
        (call(repeatable=False), UNSENT, "Nothing was sent"),
        (call(repeatable=True), SENT, "unknown; it is safe to repeat it"),
        (call(repeatable=False), SENT, "give events an id of your own"),
        (call(repeatable=False, method="PATCH", path="/v1/tenants/t/events/x"), SENT, "look before you repeat it$"),
        (call(repeatable=True, method="GET"), SENT, "Try again$"),
    ],
)
def test_a_lost_answer_leads_to_a_reason_and_advice(asked: Call[bytes], lost: Lost, says: str) -> None:
    with pytest.raises(Unreachable, match=says) as raised:
        conclude(asked, lost, SERVER)
    assert lost.reason in str(raised.value)
    assert SERVER in str(raised.value)


def test_only_a_repeated_call_that_is_too_late_is_in_doubt() -> None:
    doubt = call(repeatable=True, method="GET")
    asked = Call("DELETE", "/", lambda status, body: body, doubt=doubt)
    too_late = Reply(409, {}, b"")
    assert in_doubt(asked, 1, too_late) is None
    assert in_doubt(asked, 2, too_late) is doubt
    assert in_doubt(asked, 2, Reply(404, {}, b"")) is None
    assert in_doubt(asked, 2, SENT) is None
