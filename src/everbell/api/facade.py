"""A facade: the HTTP API of another product, answered by Everbell, so that its clients need no change.

Its routes translate to the same requests as every other route, and exist only where `--facade` switches them on. Keys,
limits, audit log, metrics and the OpenAPI document treat them like all others. A facade keeps the paths, bodies, status
codes and errors of its product, so it reads bodies itself and has its own form of errors.

`--facade PRODUCT=TENANT` puts all its events into one tenant, and a key needs its scope for that tenant. `--facade
PRODUCT` is for products that have tenants of their own; then a key needs its scope for all tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from msgspec import Struct

from everbell.api.route import MayRead, Resource, Route
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.edge.drafting import Edge
from everbell.entropy import Entropy
from everbell.errors import EverbellError
from everbell.http.message import HttpResponse
from everbell.http.problem import problem_of
from everbell.links.port import PoliciesPort


class FacadeSetting(Struct, frozen=True):
    """One facade that is switched on."""

    product: str
    tenant: str | None = None


class FacadePorts(Struct, frozen=True):
    """The parts of a server that facades use."""

    ask: Ask
    edge: Edge
    tenants: Tenants
    policies: PoliciesPort | None
    entropy: Entropy
    kafka: Mapping[str, str]
    """The brokers of each Kafka cluster, by its name."""
    may_read: MayRead
    """Whether the sender of a request may read the events of a tenant."""


class Facade(Resource, tag=""):
    """The routes of a product. The docstring of a subclass describes its tag."""

    product: ClassVar[str]
    """The name in `--facade`."""
    takes_tenant: ClassVar[bool]
    """Whether the setting names the tenant of its events."""
    policy: ClassVar[Mapping[str, Any]] = {}
    """The fields of that tenant's policy that make deliveries look like those of the product."""

    def __init__(self, ports: FacadePorts, tenant: str | None) -> None:
        self.ports = ports
        self.ask = ports.ask
        self.edge = ports.edge
        self.tenant = tenant

    def refusal(self, error: EverbellError) -> HttpResponse:
        """The answer that an error stands for, as clients of the product know it."""
        return problem_of(error)

    @property
    def routes(self) -> tuple[Route, ...]:
        return tuple(replace(route, tenant=self.tenant, refuse=self.refusal) for route in super().routes)
