"""The outcome of an HTTP answer for an event, with a pool that gives prepared answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from everbell.channels.http import HttpChannel
from everbell.core.delivery_form import FORM_HEADER
from everbell.core.policy import TenantSpec, tenant_of
from everbell.core.retry import Outcome, Result
from everbell.core.tenant import Tenant
from everbell.http.client import HttpFailure, HttpPool, HttpReply, OutgoingRequest
from tests.unit.channels.fake_delivery import FakeDelivery

NOW = 1_767_225_600_000  # Thu, 01 Jan 2026 00:00:00 GMT
BATCHING = Tenant("shop", batch=3)


class FixedClock:
    def now(self) -> int:
        return NOW

    def elapsed_ms(self) -> int:
        return 0


class FakePool:
    """Keeps all requests, and gives them the same answer."""

    def __init__(self, answer: HttpReply | HttpFailure) -> None:
        self.answer = answer
        self.sent: list[tuple[OutgoingRequest, float]] = []
        self.closed = False

    def send(self, request: OutgoingRequest, timeout_s: float, done: Callable[[HttpReply | HttpFailure], None]) -> None:
        self.sent.append((request, timeout_s))
        asyncio.get_running_loop().call_soon(done, self.answer)

    async def close(self) -> None:
        self.closed = True


def reply(status: int, body: bytes = b"", **headers: str) -> HttpReply:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} Whatever\r\n{lines}content-length: 0\r\n\r\n"
    return HttpReply(status, head.encode(), body, False)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def outcome_of(answer: HttpReply | HttpFailure, tenant: Tenant | None = None) -> Outcome:
    """The outcome of a single delivery."""

    async def main() -> Outcome:
        channel = HttpChannel(cast(HttpPool, FakePool(answer)), FixedClock())
        delivery = FakeDelivery(tenant=tenant)
        channel.start([delivery])
        return await delivery.until_settled()

    return asyncio.run(main())


RESULTS: dict[Result, tuple[int, ...]] = {
    "delivered": (200, 201, 202, 204, 206, 299),
    "refused": (400, 401, 403, 404, 405, 406, 410, 411, 413, 415, 418, 422, 426, 428, 431, 451, 499),
    "failed": (300, 301, 302, 304, 307, 308, 408, 409, 425, 429, 500, 501, 502, 503, 504, 520, 599),
}


@pytest.mark.parametrize(("result", "status"), [(result, status) for result in RESULTS for status in RESULTS[result]])
def test_the_outcome_of_each_status(result: Result, status: int) -> None:
    outcome = outcome_of(reply(status))

    assert (outcome.result, outcome.code) == (result, status)


@pytest.mark.parametrize(
    ("status", "result"), [(200, "delivered"), (204, "failed"), (404, "failed"), (409, "refused"), (304, "delivered")]
)
def test_a_tenant_says_which_status_codes_mean_done_and_which_are_permanent(status: int, result: Result) -> None:
    tenant = tenant_of("shop", TenantSpec(done=(200, "304"), permanent=(409, 410)))

    assert outcome_of(reply(status), tenant).result == result


@pytest.mark.parametrize(("form", "mode"), [("payload", "binary"), ("structured", "payload"), ("binary", "payload")])
def test_an_event_may_choose_the_form_of_its_deliveries(form: Any, mode: Any) -> None:
    async def test() -> None:
        pool = FakePool(reply(200))
        delivery = FakeDelivery(tenant=Tenant("shop", mode=mode), headers=(("x-a", "1"), (FORM_HEADER, form)))
        HttpChannel(cast(HttpPool, pool), FixedClock()).start([delivery])
        await delivery.until_settled()
        [(request, _)] = pool.sent
        assert (b"ce-id" in request.headers, b"everbell-id" in request.headers) == (form == "binary", form == "payload")
        assert (b"specversion" in request.body) == (form == "structured")
        assert b"x-a: 1" in request.headers
        assert FORM_HEADER.encode() not in request.headers

    run(test)


@pytest.mark.parametrize(
    ("kind", "result"),
    [("timeout", "timeout"), ("refused-address", "refused"), ("connect", "failed"), ("closed", "failed")],
)
def test_the_outcome_of_a_request_without_an_answer(kind: Any, result: Result) -> None:
    outcome = outcome_of(HttpFailure(kind, "because"))

    assert outcome.result == result
    assert "because" in (outcome.reason or "")


@pytest.mark.parametrize(
    ("value", "retry_after_ms"),
    [
        ("0", 0),
        ("120", 120_000),
        ("999999999999", 86_400_000),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60_000),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", 86_400_000),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_a_receiver_says_when_to_come_again(value: str, retry_after_ms: int | None) -> None:
    assert outcome_of(reply(503, retry_after=value)).retry_after_ms == retry_after_ms


def test_the_reason_shows_the_beginning_of_the_answer() -> None:
    outcome = outcome_of(reply(503, b"overloaded \xff" + b"x" * 1_000))

    assert (outcome.reason or "").startswith("HTTP 503: overloaded \ufffd")
    assert len(outcome.reason or "") < 250


def test_a_redirect_says_where_to_schedule_to() -> None:
    assert "https://new.example" in (outcome_of(reply(308, location="https://new.example")).reason or "")


def test_one_post_an_event() -> None:
    async def test() -> None:
        pool = FakePool(reply(204))
        channel = HttpChannel(cast(HttpPool, pool), FixedClock())
        deliveries = [
            FakeDelivery("https://shop.example:8443/hook?a=b", tenant=Tenant("shop", timeout_ms=2_500)),
            FakeDelivery(wanted=False),
        ]
        channel.start(deliveries)
        await deliveries[0].until_settled()

        ((request, timeout_s),) = pool.sent
        assert (request.scheme, request.host, request.port) == ("https", "shop.example", 8443)
        assert (request.method, request.target, request.body) == ("POST", "/hook?a=b", b'{"order": 17}')
        assert timeout_s == 2.5
        assert deliveries[1].outcomes == []
        await channel.close()
        assert pool.closed

    run(test)


def test_a_target_that_rules_have_forbidden_since_is_refused() -> None:
    async def test() -> None:
        pool = FakePool(reply(204))
        channel = HttpChannel(cast(HttpPool, pool), FixedClock())
        delivery = FakeDelivery("https://user@shop.example/")
        channel.start([delivery])

        assert delivery.outcome.result == "refused"
        assert pool.sent == []

    run(test)


def test_batches_are_cut_by_size_and_target() -> None:
    async def test() -> None:
        pool = FakePool(reply(200))
        channel = HttpChannel(cast(HttpPool, pool), FixedClock())
        to_a = [FakeDelivery("https://shop.example/a", tenant=BATCHING, id=f"a{number}") for number in range(5)]
        to_b = [FakeDelivery("https://shop.example/b", tenant=BATCHING, id="b")]
        gone = FakeDelivery("https://shop.example/a", tenant=BATCHING, id="gone", wanted=False)
        channel.start([to_a[0], gone, *to_a[1:], *to_b])
        for delivery in (*to_a, *to_b):
            assert (await delivery.until_settled()).result == "delivered"

        batches = [(request.target, _ids(request)) for request, _ in pool.sent]
        assert batches == [("/a", ["a0", "a1", "a2"]), ("/a", ["a3", "a4"]), ("/b", ["b"])]

    run(test)


def _ids(request: OutgoingRequest) -> list[str]:
    return [event["id"] for event in msgspec.json.decode(request.body)]


@pytest.mark.parametrize(
    ("body", "results"),
    [
        (b'{"results": [{"id": "e1", "status": 503, "reason": "busy"}]}', ["delivered", "failed", "delivered"]),
        (b' {"results": [{"id": "e0", "status": 410}, {"id": "e2", "status": 204}]}', ["refused"] + ["delivered"] * 2),
        (b'{"results": [{"id": "unknown", "status": 500}]}', ["delivered"] * 3),
        (b'{"ok": true}', ["delivered"] * 3),
        (b"{broken", ["delivered"] * 3),
        (b"thanks", ["delivered"] * 3),
    ],
)
def test_the_receiver_of_a_batch_may_answer_for_each(body: bytes, results: list[Result]) -> None:
    async def test() -> None:
        channel = HttpChannel(cast(HttpPool, FakePool(reply(200, body))), FixedClock())
        deliveries = [FakeDelivery(tenant=BATCHING, id=f"e{number}") for number in range(3)]
        channel.start(deliveries)

        assert [(await delivery.until_settled()).result for delivery in deliveries] == results

    run(test)


def test_a_batch_that_fails_fails_as_a_whole() -> None:
    async def test() -> None:
        body = b'{"results": [{"id": "e0", "status": 200}]}'
        channel = HttpChannel(cast(HttpPool, FakePool(reply(503, body, retry_after="7"))), FixedClock())
        deliveries = [FakeDelivery(tenant=BATCHING, id=f"e{number}") for number in range(3)]
        channel.start(deliveries)

        outcomes = [await delivery.until_settled() for delivery in deliveries]
        assert {(outcome.result, outcome.retry_after_ms) for outcome in outcomes} == {("failed", 7_000)}

    run(test)


@pytest.mark.parametrize(
    ("mode", "content_type"), [("binary", b"application/json"), ("structured", b"application/cloudevents+json")]
)
def test_the_mode_of_the_tenant_decides_how_an_event_travels(mode: Any, content_type: bytes) -> None:
    async def test() -> None:
        pool = FakePool(reply(204))
        delivery = FakeDelivery(tenant=Tenant("shop", mode=mode))
        HttpChannel(cast(HttpPool, pool), FixedClock()).start([delivery])
        await delivery.until_settled()
        ((request, _),) = pool.sent
        assert b"content-type: " + content_type in request.headers
        assert (request.body == delivery.event.payload) is (mode == "binary")

    run(test)


def test_a_payload_can_travel_alone() -> None:
    async def test() -> None:
        pool = FakePool(reply(204))
        delivery = FakeDelivery(tenant=Tenant("shop", mode="payload"))
        HttpChannel(cast(HttpPool, pool), FixedClock()).start([delivery])
        await delivery.until_settled()
        ((request, _),) = pool.sent
        assert request.body == delivery.event.payload
        assert b"ce-" not in request.headers
        assert b"everbell-id: order-17" in request.headers

    run(test)


@pytest.mark.parametrize("tenant", [Tenant("shop"), BATCHING])
def test_waiting_in_vain_for_a_lookup_or_a_socket_is_no_attempt(tenant: Tenant) -> None:
    async def main() -> None:
        pool = FakePool(HttpFailure("no-turn", "others had their turn"))
        deliveries = [FakeDelivery(id=name, tenant=tenant) for name in ("a", "b")]
        HttpChannel(cast(HttpPool, pool), FixedClock()).start(deliveries)
        for _ in range(3):
            await asyncio.sleep(0)
        assert [delivery.given_back for delivery in deliveries] == [1, 1]
        assert not any(delivery.outcomes for delivery in deliveries)
        assert {request.tenant for request, _ in pool.sent} == {"shop"}

    run(main)


def test_what_a_receiver_returns_is_kept_in_part() -> None:
    redirect = outcome_of(reply(302, location="https://elsewhere.example/" + "x" * 5_000))
    assert len(redirect.reason or "") < 300

    async def main() -> None:
        body = msgspec.json.encode({"results": [{"id": "a", "status": 503, "reason": "x" * 5_000}]})
        delivery = FakeDelivery(id="a", tenant=BATCHING)
        HttpChannel(cast(HttpPool, FakePool(reply(200, body))), FixedClock()).start([delivery])
        assert len((await delivery.until_settled()).reason or "") == 200

    run(main)
