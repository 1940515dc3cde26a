"""Simple events have a time, a target and a payload of JSON, and nothing else. Most events of a batch are simple.

They are checked and passed on as columns, which takes half the time of making a draft for each. A batch is simple as a
whole or not at all: `core.spec.draft` handles a batch with an unusual or wrong event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct

from everbell.core.event import Event
from everbell.core.json_limits import check_json
from everbell.core.spec import Draft, PlainSpec
from everbell.core.tenant import Limits, Tenant
from everbell.core.time import parse_instant
from everbell.errors import InvalidInput


class SimpleBatch(Struct, tag="simple"):
    """Checked simple events of one tenant, in order, as columns."""

    dues: list[int]
    targets: list[str]
    payloads: list[bytes | Raw]

    def __len__(self) -> int:
        return len(self.dues)

    @classmethod
    def of(cls, events: Sequence[Event]) -> SimpleBatch:
        """Events without their places."""
        return cls(
            [event.due_at for event in events], [event.to for event in events], [event.payload for event in events]
        )

    def drafts(self) -> list[Draft]:
        """The same events as drafts."""
        return list(map(Draft, self.dues, self.targets, map(bytes, self.payloads)))

    def clear(self) -> None:
        """Drop all events."""
        for column in (self.dues, self.targets, self.payloads):
            column.clear()

    def cut(self, size: int) -> list[SimpleBatch]:
        """The same events in parts of at most `size`."""
        dues, targets, payloads = self.dues, self.targets, self.payloads
        return [
            SimpleBatch(dues[start : start + size], targets[start : start + size], payloads[start : start + size])
            for start in range(0, len(dues), size)
        ]


def may_be_simple(tenant: Tenant) -> bool:
    """Whether events of a tenant can be checked without the clock, and without counting events."""
    limits = tenant.limits
    if tenant.durability == "replicas":
        return False
    return tenant.past == "deliver" and limits.horizon_ms is None and limits.rate is None and limits.pending is None


def add_simple(
    batch: SimpleBatch, text: bytes, specs: Sequence[PlainSpec], tenant: Tenant, check_target: Callable[[str], object]
) -> bool:
    """Check events that were read from a text, and add them to the batch; False if one is not simple, or is wrong."""
    # This runs for every event of a batch.
    default, checked = tenant.to, None
    dues, targets, payloads = batch.dues, batch.targets, batch.payloads
    try:
        if not _are_small(text, len(specs), tenant.limits):
            for spec in specs:
                check_json(bytes(spec.payload), tenant.limits)
        for spec in specs:
            at, to = spec.at, spec.to or default
            if at is None or to is None:
                return False
            if to != checked:
                check_target(to)
                checked = to
            dues.append(parse_instant(at))
            targets.append(to)
            payloads.append(spec.payload)
    except (InvalidInput, OverflowError):
        return False
    return True


def _are_small(text: bytes, events: int, limits: Limits) -> bool:
    """Whether no payload in a text can be too large, or nested too deep. No payload is larger than the whole text, and
    each event has one brace outside its payload."""
    if len(text) > limits.payload_bytes:
        return False
    braces = text.count(b"{") - events
    return braces + text.count(b"[") <= limits.depth if b"[" in text else braces <= limits.depth
