"""The policies of tenants over HTTP: read, set, delete. Only operators change a policy, because it has quotas.

A policy is a document in the cluster's log that every node applies within a moment. It overrides the settings of the
nodes field by field; a field that it leaves out follows the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everbell.api.pauses import PausedThing, paused_in
from everbell.api.route import TENANT, Resource, ResponseKind, Route
from everbell.api.views import json_response
from everbell.core.cluster import Policy
from everbell.core.document import Source, hidden, policy_over, restored, sources
from everbell.core.policy import TenantSpec
from everbell.core.request import Ask
from everbell.core.tenant import Tenants
from everbell.edge.bodies import Body, version_of
from everbell.engine.requests import CountEvents, ListPauses
from everbell.errors import Conflict, NotFound, TooLarge
from everbell.http.message import HttpRequest, HttpResponse
from everbell.links.port import PoliciesPort
from everbell.stores.port import Counts

DOCUMENT_BYTES_MAX = 16 * 1024
DOCUMENTS_MAX = 10_000
"""All nodes hold all documents in memory."""

_NO_EVENTS = Counts(0, 0)


class TenantView(Struct, frozen=True):
    """A tenant: the policy in force, and the source of each field."""

    name: str
    version: int
    """Of its document; 0 where it has none."""
    policy: TenantSpec
    """Secrets by their last characters."""
    sources: dict[str, Source]
    pauses: list[PausedThing]
    """Its pauses."""


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


_SEEN = ResponseKind(200, "the policy in force", TenantView, headers=("etag",))


class TenantsApi(Resource, tag="tenants"):
    """Tenants and their policies."""

    def __init__(
        self,
        policies: PoliciesPort,
        tenants: Tenants,
        ask: Ask,
        *,
        pauses: bool = False,
    ) -> None:
        """`pauses` says whether `ask` answers requests about them."""
        self._policies = policies
        self._tenants = tenants
        self._ask = ask
        self._pauses = pauses
        self._specs = Body(TenantSpec)

    @Route(
        "GET",
        "/v1/tenants",
        "List tenants",
        (ResponseKind(200, "those with a policy of their own, with events, or with a pause", TenantsView),),
        access="admin",
        shared=True,
    )
    async def list_tenants(self, request: HttpRequest) -> HttpResponse:
        """Each comes with the number of its pending and dead events."""
        documents = self._policies.documents()
        counts = await self._ask(CountEvents())
        paused = Counter([pause.tenant for pause in await self._ask(ListPauses())] if self._pauses else [])
        names = {*documents, *counts, *paused, *(tenant.name for tenant in self._tenants.named)}
        return json_response(TenantsView([_line(name, documents, counts, paused) for name in sorted(names)]))

    @Route("GET", TENANT, "Read a tenant's policy", (_SEEN,), access="read")
    async def get_tenant(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The answer says for each field whether the policy, the settings or a default decides it."""
        return await self._view(tenant)

    @Route(
        "PUT",
        TENANT,
        "Set a tenant's policy",
        (_SEEN,),
        access="operator",
        problems=(409,),
        body=TenantSpec,
        example={"to": "https://shop.example/hook", "retention": "7d", "limits": {"payload": "64KiB"}},
        conditional=True,
    )
    async def put_tenant(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The document replaces the one before. Fields that it leaves out follow the settings."""
        expected = version_of(request)
        self._specs.read(request)
        if len(request.body) > DOCUMENT_BYTES_MAX:
            raise _too_large()
        table = restored(msgspec.json.decode(request.body), self._tenants.policy(tenant).secrets)
        await put_policy(self._policies, self._tenants, tenant, table, expected)
        return await self._view(tenant)

    @Route(
        "DELETE",
        TENANT,
        "Delete a tenant's policy",
        (_SEEN,),
        access="operator",
        problems=(404,),
        conditional=True,
    )
    async def delete_tenant(self, request: HttpRequest, tenant: str) -> HttpResponse:
        """The settings apply again. Events stay as they are."""
        expected = version_of(request)
        if tenant not in self._policies.documents():
            raise NotFound(f"tenant {tenant!r} has no policy in the log; its policy is in the settings")
        await self._policies.drop(tenant, expected)
        return await self._view(tenant)

    async def _view(self, tenant: str) -> HttpResponse:
        policy = self._policies.documents().get(tenant)
        document: dict[str, Any] = {} if policy is None else msgspec.json.decode(policy.document)
        base = self._tenants.base(tenant)
        version = 0 if policy is None else policy.version
        paused = await paused_in(tenant, self._ask) if self._pauses else []
        view = TenantView(tenant, version, hidden(self._tenants.policy(tenant)), sources(base, document), paused)
        response = json_response(view)
        return replace(response, headers=(("etag", f'"{version}"'),)) if version else response


async def put_policy(
    policies: PoliciesPort, tenants: Tenants, tenant: str, table: Mapping[str, Any], expected: int | None
) -> None:
    """Write a policy, checked together with the settings that fill in the rest. Raises `InvalidInput`, `Conflict`."""
    document = msgspec.json.encode(table)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise _too_large()
    policy_over(tenants.base(tenant), table)
    documents = policies.documents()
    if tenant not in documents and len(documents) >= DOCUMENTS_MAX:
        raise Conflict(f"there are {DOCUMENTS_MAX} policies, and no more are possible: delete some")
    await policies.put(tenant, document, expected)


def _too_large() -> TooLarge:
    return TooLarge(f"a policy has at most {DOCUMENT_BYTES_MAX} bytes")


def _line(
    name: str, documents: Mapping[str, Policy], counts: Mapping[str, Counts], paused: Mapping[str, int]
) -> TenantLine:
    policy, count = documents.get(name), counts.get(name, _NO_EVENTS)
    version = 0 if policy is None else policy.version
    return TenantLine(name, version, count.pending, count.dead, paused.get(name, 0))
