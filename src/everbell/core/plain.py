"""Plain events: a time, a target and a payload of JSON, and nothing else. Most events of a batch are such.

They are checked and handed on as columns, which takes half the time of a draft for each. A batch is plain as a whole or
not at all: what is unusual or wrong about one event is found out the long way, `core.spec.draft`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from everbell.core.spec import BRACE, BRACKET, Draft, PlainSpec, check_json
from everbell.core.tenant import Tenant
from everbell.core.time import parse_instant
from everbell.errors import InvalidInput


class Plain(Struct):
    """Checked plain events of one tenant, in order, as columns."""

    dues: list[int]
    targets: list[str]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.dues)

    def drafts(self) -> list[Draft]:
        """The same, one by one."""
        return list(map(Draft, self.dues, self.targets, self.payloads))

    def cut(self, size: int) -> list[Plain]:
        """The same in parts of so many."""
        dues, targets, payloads = self.dues, self.targets, self.payloads
        if len(dues) <= size:
            return [self]
        return [
            Plain(dues[start : start + size], targets[start : start + size], payloads[start : start + size])
            for start in range(0, len(dues), size)
        ]


def may_be_plain(tenant: Tenant) -> bool:
    """Whether what a tenant sends can be told to be right without looking at the clock."""
    return tenant.limits.horizon_ms is None


def add_plain(plain: Plain, specs: Iterable[PlainSpec], tenant: Tenant, check_target: Callable[[str], object]) -> bool:
    """Check events, and add them; False when one of them is not plain, or wrong."""
    # This runs for every event that comes in a batch.
    limits, default, checked = tenant.limits, tenant.to, None
    dues, targets, payloads, payload_bytes = plain.dues, plain.targets, plain.payloads, limits.payload_bytes
    try:
        for spec in specs:
            at, to = spec.at, spec.to or default
            if at is None or to is None:
                return False
            if to != checked:
                check_target(to)
                checked = to
            payload = bytes(spec.payload)
            inside = payload[1:]
            if BRACE in inside or BRACKET in inside or len(payload) > payload_bytes:
                check_json(payload, limits)
            dues.append(parse_instant(at))
            targets.append(to)
            payloads.append(payload)
    except (InvalidInput, OverflowError):
        return False
    return True
