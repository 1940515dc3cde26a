from __future__ import annotations

import msgspec

from everbell.bench.bodies import payload, requests_of
from everbell.bench.plans import PAYLOAD_BYTES, LoadPlan
from everbell.bench.wire import split_message
from everbell.core.spec import EventSpec, draft
from everbell.core.tenant import Tenant
from everbell.edge.batch_body import read_batch

DUE = 1_800_000_000_000


def plan(**changes: object) -> LoadPlan:
    usual = LoadPlan("127.0.0.1", 1, "/v1/tenants/bench/events/batch", "queue:later", 10, 1, DUE, 1_000, prepared=3)
    return msgspec.structs.replace(usual, **changes)


def body_of(request: bytes) -> bytes:
    bounds = split_message(request)
    assert bounds is not None
    assert bounds[1] == len(request), "one message, complete"
    return request[bounds[0] :]


def dues_of(requests: list[bytes]) -> list[int]:
    specs = [spec for request in requests for spec in read_batch(body_of(request), 1_000)]
    return [draft(spec, Tenant(), DUE).due_at for spec in specs if isinstance(spec, EventSpec)]


def test_payloads_are_as_long_as_they_say() -> None:
    assert {len(msgspec.json.encode(payload(number))) for number in (0, 9, 10, 4_095, 4_096, 999_999)} == {
        PAYLOAD_BYTES
    }


def test_batches_are_valid_and_due_within_the_span() -> None:
    dues = dues_of(requests_of(plan()))

    assert len(dues) == 30
    assert all(DUE <= due < DUE + 1_000 for due in dues)
    assert dues != sorted(dues), "at random"


def test_dues_in_order_are_spread_evenly() -> None:
    dues = dues_of(requests_of(plan(in_order=True, due_span_ms=3_000)))

    assert dues == [DUE + 100 * number for number in range(30)]


def test_a_single_event_goes_alone() -> None:
    requests = requests_of(plan(batch=1, path="/v1/tenants/bench/events"))

    assert len(requests) == 3
    assert all(request.startswith(b"POST /v1/tenants/bench/events HTTP/1.1\r\n") for request in requests)
    assert msgspec.json.decode(body_of(requests[0]))["to"] == "queue:later"


def test_a_bare_delivery_carries_payloads_alone() -> None:
    (request,) = requests_of(plan(batch=100, as_delivery=True))

    assert len(msgspec.json.decode(body_of(request))) == 100
