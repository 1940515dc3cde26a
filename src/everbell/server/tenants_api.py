"""The policies of tenants over HTTP: look, set, delete. Changing one is for operators: a policy has quotas in it.

What is set is a document in the cluster's log, which counts on every node within a moment. It overrides the settings
of the nodes field by field; what it leaves out follows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everbell.core.cluster import Policy
from everbell.core.document import Source, hidden, policy_over, restored, sources
from everbell.core.policy import TenantSpec
from everbell.core.tenant import Tenants
from everbell.engine.port import OperationsPort
from everbell.errors import Conflict, NotFound, TooLarge
from everbell.links.port import PausesPort, PoliciesPort
from everbell.server.bodies import Body, version_of
from everbell.server.message import Request, Response
from everbell.server.pauses_api import PausedThing, paused_in
from everbell.server.views import json_response
from everbell.stores.port import Counts

DOCUMENT_BYTES_MAX = 16 * 1024
DOCUMENTS_MAX = 10_000
"""All nodes hold all documents in memory."""

_NO_EVENTS = Counts(0, 0)


class TenantView(Struct, frozen=True):
    """A tenant: the policy in force, and who decides each field of it."""

    name: str
    version: int
    """Of its document; 0 where it has none."""
    policy: TenantSpec
    """Secrets by their last characters."""
    sources: dict[str, Source]
    pauses: list[PausedThing]
    """What of it is paused."""


class TenantLine(Struct, frozen=True):
    """A tenant among others."""

    name: str
    version: int
    pending: int
    """Events that are neither finished nor dead."""
    dead: int
    pauses: int
    """How many things of it are paused: itself, keys, targets and queues."""


class TenantsView(Struct, frozen=True):
    """All tenants that have a policy of their own, events, or something that is paused."""

    tenants: list[TenantLine]


class TenantsApi:
    """The handlers of `/v1/tenants`."""

    def __init__(
        self,
        policies: PoliciesPort,
        tenants: Tenants,
        operations: OperationsPort,
        pauses: PausesPort | None = None,
    ) -> None:
        self._policies = policies
        self._tenants = tenants
        self._operations = operations
        self._pauses = pauses
        self._specs = Body(TenantSpec)

    async def list(self, request: Request) -> Response:
        """All tenants."""
        documents = self._policies.documents()
        counts = await self._operations.counts()
        paused = Counter([] if self._pauses is None else [pause.tenant for pause in await self._pauses.pauses()])
        names = {*documents, *counts, *paused, *(tenant.name for tenant in self._tenants.named)}
        return json_response(TenantsView([_line(name, documents, counts, paused) for name in sorted(names)]))

    async def show(self, request: Request, tenant: str) -> Response:
        """The policy in force."""
        return await self._view(tenant)

    async def put(self, request: Request, tenant: str) -> Response:
        """Put a document in the place of the one there is."""
        expected = version_of(request)
        document = self._read(request, tenant)
        documents = self._policies.documents()
        if tenant not in documents and len(documents) >= DOCUMENTS_MAX:
            raise Conflict(f"there are {DOCUMENTS_MAX} policies, and no more are possible: delete some")
        await self._policies.put(tenant, document, expected)
        return await self._view(tenant)

    async def delete(self, request: Request, tenant: str) -> Response:
        """Go by the settings again."""
        expected = version_of(request)
        if tenant not in self._policies.documents():
            raise NotFound(f"tenant {tenant!r} has no policy in the log; what counts for it is in the settings")
        await self._policies.drop(tenant, expected)
        return await self._view(tenant)

    def _read(self, request: Request, tenant: str) -> bytes:
        """The document in a request, checked together with what it leaves out."""
        self._specs.read(request)
        if len(request.body) > DOCUMENT_BYTES_MAX:
            raise TooLarge(f"a policy has at most {DOCUMENT_BYTES_MAX} bytes")
        table = restored(msgspec.json.decode(request.body), self._tenants.policy(tenant).secrets)
        policy_over(self._tenants.base(tenant), table)
        return msgspec.json.encode(table)

    async def _view(self, tenant: str) -> Response:
        policy = self._policies.documents().get(tenant)
        document: dict[str, Any] = {} if policy is None else msgspec.json.decode(policy.document)
        base = self._tenants.base(tenant)
        version = 0 if policy is None else policy.version
        paused = [] if self._pauses is None else await paused_in(tenant, self._pauses)
        view = TenantView(tenant, version, hidden(self._tenants.policy(tenant)), sources(base, document), paused)
        response = json_response(view)
        return replace(response, headers=(("etag", f'"{version}"'),)) if version else response


def _line(
    name: str, documents: Mapping[str, Policy], counts: Mapping[str, Counts], paused: Mapping[str, int]
) -> TenantLine:
    policy, count = documents.get(name), counts.get(name, _NO_EVENTS)
    version = 0 if policy is None else policy.version
    return TenantLine(name, version, count.pending, count.dead, paused.get(name, 0))
