"""The envelope of a payload: CloudEvents attributes and signatures that receivers can verify."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from everbell.channels.envelope import (
    batch_body,
    batch_headers,
    event_headers,
    payload_headers,
    structured_body,
    structured_headers,
)
from everbell.core.event import Repeat
from everbell.core.tenant import Tenant
from tests.unit.channels.fake_delivery import FakeDelivery

NOW = 1_767_225_600_999
SECRETS = tuple("whsec_" + b64encode(bytes([number]) * 24).decode() for number in (1, 2, 3))


def in_loop(test: Callable[[], None]) -> None:
    """Run a test where deliveries can be made."""

    async def main() -> None:
        test()

    asyncio.run(main())


def headers_of(block: bytes) -> dict[str, str]:
    """A header block as a receiver reads it; no header comes twice."""
    assert block.endswith(b"\r\n")
    pairs = [line.split(": ", 1) for line in block.decode("ascii").removesuffix("\r\n").split("\r\n")]
    headers = {pair[0]: pair[1] for pair in pairs}
    assert len(headers) == len(pairs)
    return headers


def sent(now: int = NOW, **fields: Any) -> dict[str, str]:
    async def main() -> dict[str, str]:
        return headers_of(event_headers(FakeDelivery(**fields), now))

    return asyncio.run(main())


def test_the_headers_of_an_event() -> None:
    assert sent(key="order-17", headers=(("x-team", "orders"),), traceparent="00-0a-0b-01", attempt=3) == {
        "content-type": "application/json",
        "user-agent": "everbell",
        "ce-specversion": "1.0",
        "ce-type": "dev.everbell.event",
        "ce-source": "/v1/tenants/shop",
        "ce-id": "order-17",
        "ce-time": "2026-01-01T00:00:00.250Z",
        "ce-partitionkey": "order-17",
        "everbell-occurrence": "1",
        "everbell-attempt": "3",
        "everbell-epoch": "9",
        "everbell-due": "2026-01-01T00:00:00.250Z",
        "x-team": "orders",
        "traceparent": "00-0a-0b-01",
    }


def test_a_tenant_adds_headers_and_the_number_of_the_occurrence() -> None:
    tenant = Tenant("shop", headers=(("accept", "*/*"), ("x-team", "all")), sequence_header="x-sequence-number")
    headers = sent(tenant=tenant, headers=(("x-team", "orders"),), occurrence=4)
    assert (headers["accept"], headers["x-team"], headers["x-sequence-number"]) == ("*/*", "orders", "4")


def test_bytes_keep_their_content_type() -> None:
    assert sent(payload=b"\x00", content_type="image/png")["content-type"] == "image/png"


def test_a_recurring_event_names_its_occurrence() -> None:
    headers = sent(repeat=Repeat(1_000), occurrence=4)

    assert (headers["ce-id"], headers["everbell-occurrence"]) == ("order-17:4", "4")


def test_an_occurrence_that_went_its_own_way_has_the_same_name() -> None:
    def test() -> None:
        apart = FakeDelivery(id="ev_" + "0" * 32, origin="order-17", occurrence=4)
        assert headers_of(event_headers(apart, NOW))["ce-id"] == "order-17:4"
        assert [event["id"] for event in msgspec.json.decode(batch_body([apart]))] == ["order-17:4"]

    in_loop(test)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("order-17", "order-17"),
        ("a b", "a%20b"),
        ('say "hi"', "say%20%22hi%22"),
        ("100%", "100%25"),
        ("Euro €", "Euro%20%E2%82%AC"),
        ("a/b?c=d&e", "a/b?c=d&e"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
    ],
)
def test_names_are_percent_encoded_as_cloudevents_wants_it(name: str, encoded: str) -> None:
    headers = sent(id=name, key=name)

    assert headers["ce-id"] == encoded
    assert headers["ce-partitionkey"] == encoded


@given(st.text(min_size=1, max_size=40))
def test_any_name_comes_back_from_its_header(name: str) -> None:
    encodable = name.encode("utf-8", "ignore").decode()
    headers = sent(id=encodable, key=encodable)

    assert unquote(headers["ce-id"]) == encodable
    assert unquote(headers["ce-partitionkey"]) == encodable
    assert " " not in headers["ce-id"]
    assert '"' not in headers["ce-id"]


def test_without_a_secret_nothing_is_signed() -> None:
    assert "webhook-signature" not in sent()


@pytest.mark.parametrize("id", ["order-17", "ø 17"])
def test_a_signature_is_verified_by_standard_webhooks(id: str) -> None:
    now = time.time_ns() // 1_000_000  # The verifier uses the real clock, and refuses old timestamps.
    tenant = Tenant("shop", secrets=SECRETS[:2])
    headers = sent(now, tenant=tenant, id=id)

    for secret in tenant.secrets:
        assert Webhook(secret).verify('{"order": 17}', headers) == {"order": 17}
    assert headers["webhook-id"] == headers["ce-id"]
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[2]).verify('{"order": 17}', headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRETS[0]).verify('{"order": 18}', headers)


def test_the_signature_of_a_batch_is_verified_too() -> None:
    def test() -> None:
        tenant = Tenant("shop", secrets=SECRETS[:1])
        body = batch_body([FakeDelivery(tenant=tenant), FakeDelivery(tenant=tenant, id="order-18")])
        headers = headers_of(batch_headers(tenant, body, ["order-17", "order-18"], time.time_ns() // 1_000_000))

        verified: Any = Webhook(SECRETS[0]).verify(body.decode(), headers)
        assert [event["id"] for event in verified] == ["order-17", "order-18"]
        assert headers["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
        other = headers_of(batch_headers(tenant, body, ["order-17"], 0))
        again = headers_of(batch_headers(tenant, body, ["order-17", "order-18"], 0))
        assert headers["webhook-id"] == again["webhook-id"] != other["webhook-id"]
        assert "order-17" not in headers["webhook-id"]

    in_loop(test)


def test_a_batch_is_a_list_of_structured_events() -> None:
    def test() -> None:
        body = batch_body(
            [
                FakeDelivery(key="k", traceparent="00-0a-0b-01", attempt=2),
                FakeDelivery(payload=b"\x00\xff", content_type="image/png", repeat=Repeat(1_000), occurrence=2),
            ]
        )
        one, other = msgspec.json.decode(body)

        assert one == {
            "specversion": "1.0",
            "id": "order-17",
            "source": "/v1/tenants/shop",
            "type": "dev.everbell.event",
            "time": "2026-01-01T00:00:00.250Z",
            "everbelloccurrence": 1,
            "everbellattempt": 2,
            "everbellepoch": 9,
            "partitionkey": "k",
            "traceparent": "00-0a-0b-01",
            "datacontenttype": "application/json",
            "data": {"order": 17},
        }
        assert (other["id"], other["datacontenttype"]) == ("order-17:2", "image/png")
        assert b64decode(other["data_base64"]) == b"\x00\xff"

    in_loop(test)


def test_a_structured_event_is_one_document_signed_as_a_whole() -> None:
    async def main() -> None:
        delivery = FakeDelivery(
            tenant=Tenant("shop", secrets=SECRETS[:1]), key="order-17", headers=(("x-team", "orders"),), attempt=3
        )
        now = int(time.time() * 1_000)
        body = structured_body(delivery)
        headers = headers_of(structured_headers(delivery, body, now))
        document = msgspec.json.decode(body)
        assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
        assert headers["x-team"] == "orders"
        assert not [name for name in headers if name.startswith("ce-")]
        assert document["id"] == delivery.event.name
        assert (document["specversion"], document["everbellattempt"]) == ("1.0", 3)
        assert (document["partitionkey"], document["source"]) == ("order-17", "/v1/tenants/shop")
        assert document["data"] == msgspec.json.decode(delivery.event.payload)
        assert Webhook(SECRETS[0]).verify(body, headers) is not None

    asyncio.run(main())


def test_a_bare_payload_has_our_headers_and_no_others() -> None:
    async def main() -> None:
        delivery = FakeDelivery(tenant=Tenant("shop", secrets=SECRETS[:1]), headers=(("x-team", "orders"),), attempt=3)
        headers = headers_of(payload_headers(delivery, delivery.event.payload, int(time.time() * 1_000)))
        assert not [name for name in headers if name.startswith("ce-")]
        assert (headers["everbell-id"], headers["everbell-attempt"]) == (delivery.event.name, "3")
        assert {"everbell-occurrence", "everbell-epoch", "everbell-due", "x-team"} <= set(headers)
        assert Webhook(SECRETS[0]).verify(delivery.event.payload, headers) is not None

    asyncio.run(main())
