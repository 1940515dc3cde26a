"""Plain events: a time, a target and a payload of JSON, and nothing else. Most events of a batch are such.

They are checked and handed on as columns, which takes half the time of a draft for each. A batch is plain as a whole or
not at all: what is unusual or wrong about one event is found out the long way, `core.spec.draft`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct

from everbell.core.spec import Draft, PlainSpec, check_json
from everbell.core.tenant import Limits, Tenant
from everbell.core.time import parse_instant
from everbell.errors import InvalidInput


class Plain(Struct):
    """Checked plain events of one tenant, in order, as columns."""

    dues: list[int]
    targets: list[str]
    payloads: list[bytes | Raw]

    def __len__(self) -> int:
        return len(self.dues)

    def drafts(self) -> list[Draft]:
        """The same, one by one."""
        return list(map(Draft, self.dues, self.targets, map(bytes, self.payloads)))

    def clear(self) -> None:
        """Let go of all of them."""
        for column in (self.dues, self.targets, self.payloads):
            column.clear()

    def cut(self, size: int) -> list[Plain]:
        """The same in parts of so many."""
        dues, targets, payloads = self.dues, self.targets, self.payloads
        return [
            Plain(dues[start : start + size], targets[start : start + size], payloads[start : start + size])
            for start in range(0, len(dues), size)
        ]


def may_be_plain(tenant: Tenant) -> bool:
    """Whether what a tenant sends can be told to be right without looking at the clock, or counting."""
    limits = tenant.limits
    return limits.horizon_ms is None and limits.rate is None and limits.pending is None


def add_plain(
    plain: Plain, text: bytes, specs: Sequence[PlainSpec], tenant: Tenant, check_target: Callable[[str], object]
) -> bool:
    """Check events that were read from a text, and add them; False when one of them is not plain, or wrong."""
    # This runs for every event that comes in a batch.
    default, checked = tenant.to, None
    dues, targets, payloads = plain.dues, plain.targets, plain.payloads
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
    """Whether no payload in a text can be too large, or nested too deep: what is in one cannot be more than what is in
    all of them, and each event has a brace of its own."""
    if len(text) > limits.payload_bytes:
        return False
    braces = text.count(b"{") - events
    return braces + text.count(b"[") <= limits.depth if b"[" in text else braces <= limits.depth
