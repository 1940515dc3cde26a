"""Calls about tenants and their policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from everbell.client.answers import PolicyView, TenantLine
from everbell.client.call import Call
from everbell.client.event_json import encode_json
from everbell.client.paths import tenant_path

_PATH = "/v1/tenants"


class _Tenants(msgspec.Struct, frozen=True):
    tenants: tuple[TenantLine, ...]


def tenants(tenant: str) -> Call[tuple[TenantLine, ...]]:
    """All tenants that have a policy of their own, or events. For operators."""
    return Call("GET", _PATH, lambda status, body: msgspec.json.decode(body, type=_Tenants).tenants, repeatable=True)


def policy(tenant: str) -> Call[PolicyView]:
    """The policy of this client's tenant, secrets by their last characters."""
    return Call("GET", tenant_path(tenant), _view, repeatable=True)


def set_policy(tenant: str, document: Mapping[str, Any], *, version: int | None = None) -> Call[PolicyView]:
    """Put a document in the place of the one there is, if that has this version. For operators.

    What it leaves out follows the settings of the server.
    """
    return Call("PUT", tenant_path(tenant), _view, encode_json(document), version=version, repeatable=version is None)


def delete_policy(tenant: str, *, version: int | None = None) -> Call[PolicyView]:
    """Go by the settings of the server again. For operators."""
    return Call("DELETE", tenant_path(tenant), _view, version=version)


def _view(status: int, body: bytes) -> PolicyView:
    return msgspec.json.decode(body, type=PolicyView)
