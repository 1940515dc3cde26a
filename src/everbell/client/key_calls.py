"""The calls on access keys, for operators."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everbell.client.answers import KeyView, NewKey
from everbell.client.call import Call, decoded
from everbell.client.event_json import encode_json
from everbell.client.operation import Calls, operation
from everbell.client.paths import quoted

_PATH = "/v1/keys"


class _Keys(msgspec.Struct, frozen=True):
    keys: tuple[KeyView, ...]


class KeyCalls(Calls):
    """Operations on access keys."""

    @operation
    def keys(self) -> Call[tuple[KeyView, ...]]:
        """All access keys, the oldest first. Revoked keys are among them."""
        return Call("GET", _PATH, lambda status, body: _keys(status, body).keys, repeatable=True)

    @operation
    def create_key(
        self, scopes: Sequence[str] = ("schedule", "read"), *, all_tenants: bool = False, note: str = ""
    ) -> Call[NewKey]:
        """Create an access key for this client's tenant, or for all. Only this answer has its text."""
        spec = {"tenant": "*" if all_tenants else self.tenant, "scopes": tuple(scopes), "note": note}
        return Call("POST", _PATH, _new_key, encode_json(spec))

    @operation
    def revoke_key(self, id: str) -> Call[KeyView]:
        """Revoke an access key. It cannot become valid again."""
        path = f"{_PATH}/{quoted(id)}"
        return Call("DELETE", path, _key, repeatable=True)


_keys = decoded(_Keys)
_key = decoded(KeyView)
_new_key = decoded(NewKey)
