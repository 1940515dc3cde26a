"""The events of a load, with 300 bytes of payload by default.

Due times are random over a span or evenly spread over it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everbell.bench.plans import PAYLOAD_BYTES, LoadPlan
from everbell.bench.wire import request
from everbell.core.time import format_instant
from everbell.entropy import SeededEntropy

_SEED = 20_260_101
_NOTES = 4_096
_noise = SeededEntropy(_SEED)
_NOISE = "".join(_noise.nonce().hex() for _ in range(0, _NOTES + 2 * PAYLOAD_BYTES, 18))


def payload(number: int, size: int = PAYLOAD_BYTES) -> dict[str, object]:
    """A payload of `size` bytes of JSON that does not compress well, like a real one."""
    order: dict[str, object] = {"order": number, "customer": "c-4711", "note": ""}
    start = number % _NOTES
    order["note"] = _NOISE[start : start + size - len(msgspec.json.encode(order))]
    return order


def lines_of(
    count: int, dues: Sequence[int], to: str, cron: str = "", payload_bytes: int = PAYLOAD_BYTES
) -> list[bytes]:
    """`count` events, each as a line of JSON; with an expression, they recur."""
    return [_line(number, due, to, cron, payload_bytes) for number, due in zip(range(count), dues, strict=True)]


def requests_of(plan: LoadPlan) -> list[bytes]:
    """The prepared requests of a plan, in the order of sending."""
    if plan.as_delivery:
        body = msgspec.json.encode([payload(number) for number in range(plan.batch)])
        return [request(plan.path, body)]
    count = plan.prepared * plan.batch
    lines = lines_of(count, _dues(plan, count), plan.to, plan.cron, plan.payload_bytes)
    if plan.batch == 1:
        return [request(plan.path, line, token=plan.token) for line in lines]
    starts = range(0, len(lines), plan.batch)
    bodies = [b"\n".join(lines[start : start + plan.batch]) for start in starts]
    return [request(plan.path, body, "application/x-ndjson", plan.token) for body in bodies]


def _dues(plan: LoadPlan, count: int) -> list[int]:
    if plan.in_order:
        return [plan.due_from + number * plan.due_span_ms // count for number in range(count)]
    jitter = SeededEntropy(_SEED).jitter
    return [plan.due_from + int(jitter() * plan.due_span_ms) for _ in range(count)]


def _line(number: int, due: int, to: str, cron: str, payload_bytes: int) -> bytes:
    event: dict[str, object] = {"at": format_instant(due), "to": to, "payload": payload(number, payload_bytes)}
    return msgspec.json.encode(event | {"repeat": {"cron": cron}} if cron else event)
