"""Calls about access keys, which only operators make."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everbell.client.answers import KeyView, NewKey
from everbell.client.call import Call
from everbell.client.event_json import encode_json
from everbell.client.paths import quoted

_PATH = "/v1/keys"


class _Keys(msgspec.Struct, frozen=True):
    keys: tuple[KeyView, ...]


def keys(tenant: str) -> Call[tuple[KeyView, ...]]:
    """All access keys, the oldest first, those that were revoked among them."""
    return Call("GET", _PATH, lambda status, body: msgspec.json.decode(body, type=_Keys).keys, repeatable=True)


def create_key(
    tenant: str, scopes: Sequence[str] = ("schedule", "read"), *, all_tenants: bool = False, note: str = ""
) -> Call[NewKey]:
    """Make an access key for this client's tenant, or for all. Its text is in the answer and nowhere else."""
    spec = {"tenant": "*" if all_tenants else tenant, "scopes": tuple(scopes), "note": note}
    return Call("POST", _PATH, lambda status, body: msgspec.json.decode(body, type=NewKey), encode_json(spec))


def revoke_key(tenant: str, id: str) -> Call[KeyView]:
    """Shut an access key out, for good."""
    path = f"{_PATH}/{quoted(id)}"
    return Call("DELETE", path, lambda status, body: msgspec.json.decode(body, type=KeyView), repeatable=True)
