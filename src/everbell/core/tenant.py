"""A tenant's policy: what it may send, where to, and what happens to what it sent."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from everbell.core.retry import Retry
from everbell.core.time import DAY_MS, SECOND_MS
from everbell.errors import InvalidInput

BEYOND_HORIZON = "lies beyond the tenant's horizon"
"""What is said of a time that is further ahead than `Limits.horizon_ms`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


Consistency = Literal["strict", "relaxed", "ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
"""When something is acknowledged. The words in capitals are Cassandra's; elsewhere they mean what `strict` does."""
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest of everything that a tenant may send. There is a limit on everything."""

    payload_bytes: int = 256 * 1024
    batch_events: int = 20_000
    headers: int = 32
    header_bytes: int = 4_096
    tags: int = 16
    depth: int = 64
    horizon_ms: int | None = None
    pending: int | None = None
    """How many events may wait at a time."""
    rate: int | None = None
    """How many may be scheduled in a second, on each node."""


class BreakerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a target that fails is left alone, and for how long."""

    failures: int = 10
    """So many in a row."""
    pause_ms: int = 30 * SECOND_MS


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of one tenant. Every field has a default, so a tenant exists as soon as somebody uses its name."""

    name: str = "default"
    to: str | None = None
    """The target of events that name none."""
    retry: Retry = Retry()
    on_dead: Literal["block", "park"] = "block"
    """What a dead event does to its key: block it until it is redriven or cancelled, or let the next one go."""
    dead_letter_to: str | None = None
    """Where the payload of an event goes when it dies."""
    retention_ms: int = DAY_MS
    """How long finished events stay visible, and how long their client-given ids stay taken."""
    timeout_ms: int = 10 * SECOND_MS
    """The deadline of one attempt over HTTP or in a handler."""
    lease_ms: int = 30 * SECOND_MS
    """How long a worker may hold a leased event before it comes back, unless it asks for another time."""
    in_flight: int = 128
    """How many attempts may be under way to one target (a host, a handler) at a time."""
    rate: float | None = None
    """How many attempts may start in a second to one target, on each node."""
    breaker: BreakerPolicy | None = None
    """Off, unless somebody wants it: it makes events wait for what others of their target came to."""
    batch: int = 1
    """How many events may travel in one POST in the CloudEvents batch format; 1: each alone."""
    mode: Literal["binary", "structured", "payload"] = "binary"
    """How an event travels alone: CloudEvents in headers or as one JSON document, or the payload without them."""
    consistency: Consistency = "strict"
    """Whether an acknowledged event is on disk, or will be within a moment; or how many replicas have it, where the
    store has replicas."""
    secrets: tuple[str, ...] = ()
    """Secrets (`whsec_…`) that sign deliveries; several while a secret rotates."""
    limits: Limits = Limits()


def is_tenant_name(name: str) -> bool:
    """Whether it can stand in a URL, a file name and a metric."""
    return _NAME.fullmatch(name) is not None


def check_tenant_name(name: str) -> str:
    """Refuse what is no name for a tenant."""
    if not is_tenant_name(name):
        raise InvalidInput(
            "a tenant's name has 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit",
            "tenant",
        )
    return name


class Tenants:
    """The policies by name. A name that has none of its own gets the default policy.

    What settings give is the base; `override` puts another policy in its place while everything runs.
    """

    def __init__(self, default: Tenant | None = None, named: tuple[Tenant, ...] = ()) -> None:
        self.default = default = default or Tenant()
        self.named = named
        self.live_timeout_ms = 0
        """The longest deadline of an attempt among all policies that came while this ran, also those that went."""
        self._bases = {tenant.name: tenant for tenant in named}
        self._named = dict(self._bases)
        # Bounded: anybody may make up names.
        self._unnamed = lru_cache(maxsize=1_024)(lambda name: msgspec.structs.replace(default, name=name))

    def policy(self, name: str) -> Tenant:
        """The policy of `name`, which has been checked by `check_tenant_name`."""
        return self._named.get(name) or self._unnamed(name)

    def level(self, name: str) -> str | None:
        """How many replicas have to have what it stores, in Cassandra's words; None for the usual number."""
        consistency = self.policy(name).consistency
        return None if consistency in ("strict", "relaxed") else consistency

    def is_relaxed(self, name: str) -> bool:
        """Whether it accepts that what it stored last is lost when a machine fails."""
        return self.policy(name).consistency == "relaxed"

    def base(self, name: str) -> Tenant:
        """The policy that the settings give it."""
        return self._bases.get(name) or self._unnamed(name)

    def override(self, name: str, policy: Tenant | None) -> None:
        """From now on this is its policy; None: the one of the settings again."""
        if policy is not None:
            self._named[name] = policy
            self.live_timeout_ms = max(self.live_timeout_ms, policy.timeout_ms)
        elif name in self._bases:
            self._named[name] = self._bases[name]
        else:
            self._named.pop(name, None)
