"""The calls on tenants and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from everbell.client.answers import PolicyView, TenantLine
from everbell.client.call import Call, decoded
from everbell.client.event_json import encode_json
from everbell.client.operation import Calls, operation
from everbell.client.paths import tenant_path

_PATH = "/v1/tenants"


class _TenantList(msgspec.Struct, frozen=True):
    tenants: tuple[TenantLine, ...]


class TenantCalls(Calls):
    """Operations on tenants and their policies."""

    @operation
    def tenants(self) -> Call[tuple[TenantLine, ...]]:
        """All tenants that have a policy of their own, or events. For operators."""
        return Call("GET", _PATH, lambda status, body: _tenants(status, body).tenants, repeatable=True)

    @operation
    def policy(self) -> Call[PolicyView]:
        """The policy of this client's tenant, secrets by their last characters."""
        return Call("GET", tenant_path(self.tenant), _view, repeatable=True)

    @operation
    def set_policy(self, document: Mapping[str, Any], *, version: int | None = None) -> Call[PolicyView]:
        """Replace the policy, if it has this version. For operators.

        Fields that the document leaves out follow the settings of the server.
        """
        return Call(
            "PUT", tenant_path(self.tenant), _view, encode_json(document), version=version, repeatable=version is None
        )

    @operation
    def delete_policy(self, *, version: int | None = None) -> Call[PolicyView]:
        """Delete the policy: the settings of the server apply again. For operators."""
        return Call("DELETE", tenant_path(self.tenant), _view, version=version)


_view = decoded(PolicyView)
_tenants = decoded(_TenantList)
