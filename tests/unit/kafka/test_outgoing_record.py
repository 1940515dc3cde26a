"""A delivery as a record of Kafka."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from typing import Any

import pytest
from standardwebhooks import Webhook

from everbell.core.event import Repeat
from everbell.core.tenant import Tenant
from everbell.kafka.outgoing_record import record_of
from tests.unit.channels.fake_delivery import FakeDelivery

NOW = 1_767_225_600_999


def made(now: int = NOW, **fields: Any) -> tuple[bytes, dict[str, str]]:
    async def main() -> tuple[bytes, dict[str, str]]:
        value, headers = record_of(FakeDelivery("kafka://orders", **fields), now)
        named = {name: text.decode() for name, text in headers}
        assert len(named) == len(headers)
        return value, named

    return asyncio.run(main())


def test_a_record_has_the_payload_and_cloudevents_in_headers() -> None:
    value, headers = made(key="größe", headers=(("x-team", "orders"),), traceparent="00-0a-0b-01", attempt=3)

    assert value == b'{"order": 17}'
    assert headers == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": "dev.everbell.event",
        "ce_source": "/v1/tenants/shop",
        "ce_id": "order-17",
        "ce_time": "2026-01-01T00:00:00.250Z",
        "ce_partitionkey": "größe",
        "everbell-occurrence": "1",
        "everbell-attempt": "3",
        "everbell-epoch": "9",
        "everbell-due": "2026-01-01T00:00:00.250Z",
        "traceparent": "00-0a-0b-01",
        "x-team": "orders",
    }


def test_the_name_of_an_occurrence_is_in_the_id() -> None:
    assert made(repeat=Repeat(1_000), occurrence=4)[1]["ce_id"] == "order-17:4"


def test_bytes_have_their_own_type() -> None:
    value, headers = made(payload=b"\x00\xff", content_type="image/png")

    assert (value, headers["content-type"]) == (b"\x00\xff", "image/png")


def test_a_structured_record_is_one_document() -> None:
    value, headers = made(tenant=Tenant("shop", mode="structured"))

    document = json.loads(value)
    assert (document["id"], document["data"]) == ("order-17", {"order": 17})
    assert headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert not [name for name in headers if name.startswith("ce_")]
    assert headers["everbell-attempt"] == "1"


def test_a_bare_record_has_no_cloudevents() -> None:
    value, headers = made(tenant=Tenant("shop", mode="payload"))

    assert value == b'{"order": 17}'
    assert (headers["everbell-id"], headers["content-type"]) == ("order-17", "application/json")
    assert not [name for name in headers if name.startswith("ce_")]


@pytest.mark.parametrize("event_id", ["order-17", "größe 17"])
def test_a_tenant_with_a_secret_signs(event_id: str) -> None:
    secret = "whsec_" + b64encode(bytes(24)).decode()
    now = time.time_ns() // 1_000_000
    _, headers = made(now, id=event_id, tenant=Tenant("shop", secrets=(secret,)))

    assert headers["webhook-id"] == event_id
    assert Webhook(secret).verify('{"order": 17}', headers) == {"order": 17}
