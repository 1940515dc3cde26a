"""The last check before the engine: input becomes a draft, or is refused with the name of the invalid field.

The rules for events are in `core.spec`. This module adds the targets that this process can reach, and the trace of the
request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from msgspec import UNSET
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.amendment import NO_AMENDMENT, Amendment
from everbell.core.batch_item import BatchItem, ItemSpec, identify
from everbell.core.ids import is_made
from everbell.core.kafka_targets import NO_KAFKA, KafkaTargets, check_topics
from everbell.core.simple_batch import SimpleBatch, add_simple
from everbell.core.spec import ChangeSpec, Draft, EventSpec, PlainSpec, amendment_of, check_name, draft
from everbell.core.target import group_of
from everbell.core.tenant import Tenant, Tenants
from everbell.core.url import split_url
from everbell.edge.bodies import event_bytes_max
from everbell.errors import InvalidInput
from everbell.http.address_guard import Guard, literal_address
from everbell.http.message import HttpRequest

_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class Edge:
    """Makes drafts under the policy of a tenant. `kafka` says which topics can be targets; `guard` judges targets that
    name an address instead of a host. Without one, all addresses are open."""

    def __init__(
        self,
        tenants: Tenants,
        clock: Clock,
        *,
        allows_handlers: bool,
        kafka: KafkaTargets = NO_KAFKA,
        guard: Guard | None = None,
    ) -> None:
        self.policy = tenants.registered
        self.is_registered = tenants.is_registered
        self.policy_of_known = tenants.policy
        self.now = clock.now
        self._allows_handlers = allows_handlers
        self._allows_replicas = tenants.may_replicate
        self._kafka = kafka
        self._guard = guard
        self._address_of = lru_cache(maxsize=10_000)(self._check_reachable)

    def hides_payloads(self, tenant: str) -> bool:
        """Whether answers about events leave their payloads and headers out."""
        return self.policy_of_known(tenant).payloads == "hidden"

    def event_bytes_max(self, tenant: str) -> int:
        """The size of the JSON of an event beyond which it cannot be valid."""
        return event_bytes_max(self.policy_of_known(tenant).limits)

    def new_draft(self, spec: EventSpec, tenant: str, trace: str | None = None) -> Draft:
        """The draft of one new event, with the id that the tenant's `identity` says."""
        policy = self.policy(tenant)
        if policy.identity != "id":
            identify(spec, policy)
        return self.checked(spec, policy, self.now(), trace)

    def draft(self, spec: EventSpec, tenant: str, trace: str | None = None) -> Draft:
        """The draft of an event whose id is given beside it."""
        return self.checked(spec, self.policy(tenant), self.now(), trace)

    def add_simple(self, plain: SimpleBatch, text: bytes, specs: Sequence[PlainSpec], policy: Tenant) -> bool:
        """Check simple events that were read from a text, and add them. False: one is invalid or not simple."""
        return add_simple(plain, text, specs, policy, self._check_for(policy))

    def checked(
        self, spec: EventSpec, policy: Tenant, now: int, trace: str | None, produced_at: int | None = None
    ) -> Draft:
        """The draft of one event of many."""
        try:
            if trace is not None and spec.traceparent is None:
                spec.traceparent = trace
            checked = draft(spec, policy, now, self._check_for(policy))
        except OverflowError:
            raise InvalidInput("a number is out of range") from None
        if produced_at is not None:
            checked = replace(checked, produced_at=produced_at)
        if checked.replicas is not None and not self._allows_replicas:
            raise InvalidInput("this server holds no replicas: start every node with --replica-memory", "durability")
        return checked

    def item(
        self,
        spec: ItemSpec,
        policy: Tenant,
        now: int,
        trace: str | None,
        new_id: str | None = None,
        produced_at: int | None = None,
    ) -> BatchItem:
        """A checked item of a batch. `new_id` is the id of a new event that names none. `produced_at` is the time at
        which a Kafka producer wrote it.
        """
        mode = spec.mode
        if policy.identity != "id":
            identify(spec, policy)
            if mode == "cancel":
                spec.key = spec.at = None  # They are a part of the id now.
        if mode == "create":
            spec.id = spec.id or new_id
            return BatchItem(mode, spec.id, self.checked(spec, policy, now, trace, produced_at))
        event_id = spec.id
        if event_id is None:
            raise InvalidInput(f"is needed to {mode} an event", "id")
        if mode == "cancel":
            if spec != ItemSpec(mode=mode, id=event_id):
                raise InvalidInput("to cancel an event, give its id and nothing else", "mode")
            return BatchItem(mode, check_id(event_id))
        if is_made(event_id):
            spec.id = None  # A draft cannot ask for an id that Everbell made.
        return BatchItem(mode, check_id(event_id), self.checked(spec, policy, now, trace, produced_at))

    def _check_target(self, to: str) -> None:
        """Refuse text that is not a target, and targets that this process cannot reach or must not reach."""
        address = self._address_of(to)
        if address is not None and self._guard is not None:
            self._guard.check(address, "to")

    def _check_reachable(self, to: str) -> str | None:
        """Refuse text that is not a target, and targets that this process cannot reach. Return the address of a target
        that names one: which addresses are open may change. A host's name is resolved when the event is due."""
        group_of(to)
        if to.startswith("handler:") and not self._allows_handlers:
            raise InvalidInput("a server has no handlers; use queue:name and a worker, or https://…", "to")
        if to.startswith("kafka:"):
            self._kafka.check(to)
        return literal_address(split_url(to)[1]) if to.startswith("http") else None

    def _check_for(self, policy: Tenant) -> Callable[[str], None]:
        """The check of targets for one tenant."""
        return self._check_target if policy.topics is None else partial(self._check_allowed, policy.topics)

    def _check_allowed(self, topics: tuple[str, ...], to: str) -> None:
        self._check_target(to)
        if to.startswith("kafka:"):
            check_topics(to, topics)

    def amendment(self, spec: ChangeSpec, tenant: str, asked_at: int | None = None) -> Amendment:
        """The checked fields of a change, asked for now or at an earlier time."""
        try:
            policy = self.policy_of_known(tenant)
            change = amendment_of(spec, policy, self.now() if asked_at is None else asked_at)
        except OverflowError:
            raise InvalidInput("a number is out of range") from None
        if change == NO_AMENDMENT:
            raise InvalidInput("give at least one field to change")
        if change.to is not UNSET:
            self._check_for(policy)(change.to)
        return change


def trace_of(request: HttpRequest) -> str | None:
    """The trace context of the request. An invalid one is ignored, as the standard requires."""
    trace = request.headers.get("traceparent")
    return trace if trace is not None and is_trace(trace) else None


def is_trace(text: str) -> bool:
    """Whether a text is a trace context."""
    return _TRACE.fullmatch(text) is not None


def check_id(event_id: str) -> str:
    """Refuse text that cannot be an event's id."""
    check_name(event_id, "id")
    return event_id


def check_queue_name(name: str) -> str:
    """Refuse text that cannot be a queue's name."""
    try:
        group_of(f"queue:{name}")
    except InvalidInput as error:
        raise InvalidInput(error.reason, "queue") from None
    return name
