"""Access keys: their text, the record kept of each, and the requests they allow.

A key is `evk_`, an id, `_` and a secret of 216 random bits. Everbell keeps only the SHA-256 of the secret: a random
secret needs no slower hash, and a reader of the cluster's log learns no key. The id is public: lists and the audit
log show it.

A key belongs to one tenant or to all (`*`) and has scopes:

- `read`: look at events.
- `schedule`: make events, change, ring and cancel them.
- `work`: lease due events from queues and settle them.
- `admin`: all of these. An admin key of all tenants is an operator's key, which may do anything.

Keys are documents in the cluster's log, under names that no tenant can have. All nodes therefore have the same keys,
and a revoked key is refused everywhere as soon as the log was played. Revoked keys stay in the list, because the
audit log refers to them.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Literal, get_args

import msgspec

from everbell.core.cluster.value import Policy
from everbell.core.tenant import check_tenant_name
from everbell.errors import Conflict, InvalidInput, NotFound

Scope = Literal["read", "schedule", "work", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERY_TENANT = "*"
NOTE_LENGTH_MAX = 200

DOCUMENTS = "/keys/"
"""The prefix of keys among the documents in the log. Tenant names have no slash."""

ID_BYTES = 9
SECRET_BYTES = 27
_KEY = re.compile(r"evk_([a-z2-7]{15})_([a-z2-7]{44})", re.ASCII)
_BEARER = re.compile(r" *bearer +([!-~]+) *", re.ASCII | re.IGNORECASE)
_NO_DIGEST = bytes(32)


class AccessKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of a key."""

    id: str
    digest: bytes
    """The SHA-256 of its secret."""
    tenant: str
    """The tenant that the key belongs to, or `*`."""
    scopes: tuple[Scope, ...]
    created_at: int
    note: str = ""
    """A remark for people, such as the name of the key's holder."""
    revoked_at: int | None = None

    @property
    def is_operator(self) -> bool:
        """Whether the key may do anything."""
        return self.tenant == EVERY_TENANT and "admin" in self.scopes and self.revoked_at is None


_DECODER = msgspec.json.Decoder(AccessKey)


def new_key(
    chance: bytes, tenant: str, scopes: Iterable[str], created_at: int, note: str = ""
) -> tuple[AccessKey, str]:
    """Make a key from `ID_BYTES + SECRET_BYTES` random bytes. Its text is returned once and cannot be recovered."""
    assert len(chance) == ID_BYTES + SECRET_BYTES, "an id and a secret have a fixed length"
    text = f"evk_{_written(chance[:ID_BYTES])}_{_written(chance[ID_BYTES:])}"
    return key_of(text, tenant, scopes, created_at, note), text


def key_of(text: str, tenant: str, scopes: Iterable[str], created_at: int, note: str = "") -> AccessKey:
    """The record of a key with this text. Raises `InvalidInput`."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise InvalidInput("is not an access key: those begin with evk_, and `everbell keys create` makes them", "key")
    if tenant != EVERY_TENANT:
        check_tenant_name(tenant)
    if len(note) > NOTE_LENGTH_MAX or not note.isprintable():
        raise InvalidInput(f"has at most {NOTE_LENGTH_MAX} printable characters", "note")
    return AccessKey(match[1], _digest(match[2]), tenant, _checked(scopes), created_at, note)


def _checked(scopes: Iterable[str]) -> tuple[Scope, ...]:
    wanted = set(scopes)
    unknown = sorted(wanted - set(SCOPES))
    if unknown or not wanted:
        raise InvalidInput(f"{', '.join(map(repr, unknown)) or 'nothing'} is no scope; there are {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in wanted)


def _written(chance: bytes) -> str:
    return b32encode(chance).decode().rstrip("=").lower()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def encode_key(key: AccessKey) -> bytes:
    """The key as a document."""
    return msgspec.json.encode(key)


def keys_in(documents: Mapping[str, Policy]) -> tuple[AccessKey, ...]:
    """The keys among the documents of a cluster, the oldest first."""
    keys = [_decoded(name, policy) for name, policy in documents.items() if name.startswith(DOCUMENTS)]
    return tuple(sorted(keys, key=lambda key: (key.created_at, key.id)))


def _decoded(name: str, policy: Policy) -> AccessKey:
    """The key in a document. A document of a newer version becomes a key that allows nothing on this node."""
    try:
        return _DECODER.decode(policy.document)
    except msgspec.MsgspecError:
        note = "a newer version made this key; this node does not understand it"
        return AccessKey(name.removeprefix(DOCUMENTS), _NO_DIGEST, "", (), 0, note)


class Keyring:
    """All keys of a cluster at one moment."""

    def __init__(self, keys: Iterable[AccessKey] = ()) -> None:
        self.keys = tuple(keys)
        self._by_id = {key.id: key for key in self.keys}

    def get(self, key_id: str) -> AccessKey | None:
        """The key with this id, revoked or not."""
        return self._by_id.get(key_id)

    def revocable(self, key_id: str) -> AccessKey:
        """The key with this id, if it may be revoked or already was.

        Raises `NotFound`. Raises `Conflict` for the last operator's key, because it could not be replaced, and for
        a key that a newer version wrote.
        """
        key = self._by_id.get(key_id)
        if key is None:
            raise NotFound(f"there is no key {key_id[:64]!r}")
        if not key.scopes:
            raise Conflict("a newer version made this key, and counts it: ask a node of that version to revoke it")
        if self.operators == (key,):
            raise Conflict("this is the last operator's key: make another before you revoke it")
        return key

    def find(self, authorization: str) -> AccessKey | None:
        """The valid key in an `Authorization` header, if any.

        The secret is compared in constant time, even if the key does not exist.
        """
        bearer = _BEARER.fullmatch(authorization)
        match = None if bearer is None else _KEY.fullmatch(bearer[1])
        if match is None:
            return None
        key = self._by_id.get(match[1])
        is_same = compare_digest(_digest(match[2]), _NO_DIGEST if key is None else key.digest)
        return key if key is not None and is_same and key.revoked_at is None else None

    @property
    def operators(self) -> tuple[AccessKey, ...]:
        """The keys that may do anything."""
        return tuple(key for key in self.keys if key.is_operator)


def lacks(key: AccessKey, scope: Scope | None, tenant: str | None) -> str | None:
    """The reason why a key may not use a scope in a tenant; None if it may.

    `tenant=None` means the whole cluster, which needs a key of all tenants. `scope=None` means that any key is
    enough.
    """
    if scope is None:
        return None
    if key.tenant not in (EVERY_TENANT, tenant):
        return "this needs a key of all tenants" if tenant is None else f"this key is not one of tenant {tenant!r}"
    if scope not in key.scopes and "admin" not in key.scopes:
        return f"this key lacks the scope {scope!r}"
    return None
