"""A tenant's policy: limits of its input, default targets, and rules for delivery and retention."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from everbell.core.delivery_form import Form
from everbell.core.replication import Durability, Replication
from everbell.core.retry import RetryPolicy
from everbell.core.status_codes import DONE, PERMANENT, parse_codes
from everbell.core.time import DAY_MS, SECOND_MS
from everbell.errors import InvalidInput

BEYOND_HORIZON = "lies beyond the tenant's horizon"
"""The message about a time that is later than `Limits.horizon_ms` allows."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


Consistency = Literal["strict", "relaxed", "ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
"""When a write is acknowledged. The words in capitals are Cassandra's levels; other stores treat them as `strict`."""
CONSISTENCIES: tuple[Consistency, ...] = get_args(Consistency)

Payloads = Literal["shown", "hidden"]
"""Whether people who look at events see payloads and headers."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The upper limits of a tenant's input."""

    payload_bytes: int = 256 * 1024
    batch_events: int = 20_000
    headers: int = 32
    header_bytes: int = 4_096
    tags: int = 16
    depth: int = 64
    horizon_ms: int | None = None
    pending: int | None = None
    """The number of pending events."""
    rate: int | None = None
    """The number of events scheduled in a second, on each node."""


class BreakerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """After how many failures a target's breaker opens, and for how long."""

    failures: int = 10
    """The number of consecutive failures."""
    pause_ms: int = 30 * SECOND_MS


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of one tenant. Every field has a default, so a tenant exists as soon as its name is used."""

    name: str = "default"
    to: str | None = None
    """The target of events that name none."""
    retry: RetryPolicy = RetryPolicy()
    on_dead: Literal["block", "park"] = "block"
    """A dead event blocks its key until a user redrives or cancels it, or is parked so that the next event may go."""
    dead_letter_to: str | None = None
    """The target of dead letters."""
    retention_ms: int = DAY_MS
    """How long finished events stay visible, and how long their client-given ids stay taken."""
    timeout_ms: int = 10 * SECOND_MS
    """The deadline of one attempt over HTTP or in a handler."""
    lease_ms: int = 30 * SECOND_MS
    """How long a worker may hold a leased event, unless the worker asks for another duration."""
    in_flight: int = 128
    """The limit of concurrent attempts to one target group (a host, a handler)."""
    rate: float | None = None
    """The limit of attempts that start in a second to one target group, on each node."""
    breaker: BreakerPolicy | None = None
    """Off by default: a breaker makes events wait because of the outcomes of other events."""
    batch: int = 1
    """The number of events in one POST in the CloudEvents batch format; 1 sends each alone."""
    mode: Form = "binary"
    """The form of a single delivery: CloudEvents in headers, one JSON document, or the bare payload."""
    consistency: Consistency = "strict"
    """Whether an acknowledged event is on disk or will be shortly; in Cassandra, how many replicas have acknowledged
    it.
    """
    headers: tuple[tuple[str, str], ...] = ()
    """Added to every delivery, unless the event has a header of the same name."""
    sequence_header: str | None = None
    """The name of a header that has the number of the occurrence."""
    done: frozenset[int] = parse_codes(DONE, "done")
    """The status codes of receivers that mean success."""
    permanent: frozenset[int] = parse_codes(PERMANENT, "permanent")
    """The status codes that mean that a retry cannot help."""
    past: Literal["deliver", "reject"] = "deliver"
    """Whether an event with a time in the past is delivered at once or refused."""
    past_grace_ms: int = 10 * SECOND_MS
    """How long ago a time may be without counting as past."""
    identity: Literal["id", "key+at+id"] = "id"
    """Whether an event is the one of its id, or of its key, due time and id together."""
    fencing: Literal["wait", "receiver"] = "wait"
    """Whether events of keys that a dead node may have been sending wait for one timeout, or its receivers refuse
    deliveries with a lower epoch.
    """
    placement: Literal["local", "spread"] = "local"
    """Whether events without a key or a client-given id stay on the node that accepts them, or go to all owners."""
    reuse_ids: bool = False
    """Whether a put to an event that is dead or has ended begins a new event with that id."""
    durability: Durability = "store"
    """Whether events are stored, or held in the memory of several nodes."""
    replicas: Replication = Replication()
    """For events that replicas hold: how many, and when they are acknowledged."""
    payloads: Payloads = "shown"
    """Whether answers to users show payloads and headers. Deliveries always have them."""
    topics: tuple[str, ...] | None = None
    """The Kafka topics that it may write to, as patterns (`orders`, `audit-*`, `cluster/topic`). None: all."""
    secrets: tuple[str, ...] = ()
    """Secrets (`whsec_…`) that sign deliveries; several while a secret is rotated."""
    limits: Limits = Limits()


def is_tenant_name(name: str) -> bool:
    """Whether the name is valid in a URL, a file name and a metric."""
    return _NAME.fullmatch(name) is not None


def check_tenant_name(name: str) -> str:
    """Refuse an invalid name of a tenant."""
    if not is_tenant_name(name):
        raise InvalidInput(
            "a tenant's name has 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit",
            "tenant",
        )
    return name


class Tenants:
    """The policies by name. A name without a policy gets the default policy.

    Settings give the base; `override` replaces a policy while the server runs.
    """

    def __init__(
        self,
        default: Tenant | None = None,
        named: tuple[Tenant, ...] = (),
        *,
        are_required: bool = False,
        may_replicate: bool = False,
    ) -> None:
        """With `are_required`, only tenants with a policy of their own may schedule events. With `may_replicate`, their
        events may be held by replicas.
        """
        self.are_required = are_required
        self.may_replicate = may_replicate
        self.default = default = default or Tenant()
        self.named = named
        # By tenant, the longest deadline of an attempt among all policies set by `override`, also those removed since.
        self._timeouts_ms: dict[str, int] = {}
        self._bases = {tenant.name: tenant for tenant in named}
        self._named = dict(self._bases)
        # Bounded, because a caller may invent names.
        self._unnamed = lru_cache(maxsize=1_024)(lambda name: msgspec.structs.replace(default, name=name))

    def policy(self, name: str) -> Tenant:
        """The policy of `name`, which `check_tenant_name` has accepted."""
        return self._named.get(name) or self._unnamed(name)

    def registered(self, name: str) -> Tenant:
        """The policy by which a tenant schedules events. Raises `InvalidInput` if tenants need one and it has none."""
        if self.are_required and name not in self._named:
            raise InvalidInput(f"there is no tenant {name!r}; give it a policy: PUT /v1/tenants/{name}", "tenant")
        return self.policy(name)

    def sending_ms(self, name: str, to: str = "") -> int:
        """How long an attempt that a dead node began may still reach a receiver of the tenant.

        0 if the tenant's receivers refuse such an attempt, because its epoch is lower than the last one that they saw.
        """
        policy = self.policy(name)
        if policy.fencing == "receiver":
            return 0
        longest_ms = max(policy.timeout_ms, self.base(name).timeout_ms, self._timeouts_ms.get(name, 0))
        # A worker may hold an event for as long as its lease, whatever the time limit of other targets is.
        return min(longest_ms, policy.lease_ms) if to.startswith("queue:") else longest_ms

    @property
    def sending_max_ms(self) -> int:
        """The longest that an attempt of any tenant may be in flight after its node has died."""
        settings = (tenant.timeout_ms for tenant in (self.default, *self.named))
        return max(*settings, *self._timeouts_ms.values(), 0)

    def is_registered(self, name: str) -> bool:
        """Whether the tenant has a policy of its own."""
        return name in self._named

    def level(self, name: str) -> str | None:
        """The tenant's Cassandra consistency level; None for the store's default."""
        consistency = self.policy(name).consistency
        return None if consistency in ("strict", "relaxed") else consistency

    def is_relaxed(self, name: str) -> bool:
        """Whether the tenant accepts that its latest writes are lost when a machine fails."""
        return self.policy(name).consistency == "relaxed"

    def base(self, name: str) -> Tenant:
        """The policy from the settings."""
        return self._bases.get(name) or self._unnamed(name)

    def override(self, name: str, policy: Tenant | None) -> None:
        """Replace the policy; None restores the one from the settings."""
        if policy is not None:
            self._named[name] = policy
            self._timeouts_ms[name] = max(self._timeouts_ms.get(name, 0), policy.timeout_ms)
        elif name in self._bases:
            self._named[name] = self._bases[name]
        else:
            self._named.pop(name, None)
