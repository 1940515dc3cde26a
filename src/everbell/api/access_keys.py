"""Access keys over HTTP: list, create and revoke them. Only operators may. A key's text is shown only once."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from everbell.api.route import Resource, ResponseKind, Route
from everbell.api.timestamps import Instant, instant
from everbell.api.views import json_response
from everbell.clock import Clock
from everbell.core.access import (
    EVERY_TENANT,
    ID_BYTES,
    NOTE_LENGTH_MAX,
    SCOPES,
    SECRET_BYTES,
    AccessKey,
    Keyring,
    Scope,
    new_key,
)
from everbell.edge.bodies import Body
from everbell.entropy import Entropy
from everbell.errors import Conflict
from everbell.http.message import HttpRequest, HttpResponse
from everbell.links.port import KeysPort

KEYS = "/v1/keys"
KEYS_MAX = 1_000
"""How many keys are kept. Then a new key replaces the one that was revoked first. All nodes hold all keys in memory."""

_NONCES = 4


class KeySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make."""

    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, description="admin includes the others")]
    tenant: Annotated[str, Meta(description="the tenant it is for; * for all tenants")]
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="a note for people, such as the owner")] = ""


class KeyView(Struct, frozen=True, omit_defaults=True):
    """A key, without its secret."""

    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: Instant
    note: str = ""
    revoked_at: Instant | None = None


class NewKeyView(Struct, frozen=True, omit_defaults=True):
    """A key that was just made. Its text cannot be shown again."""

    key: str
    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: Instant
    note: str = ""


class KeysView(Struct, frozen=True):
    """All keys, the oldest first."""

    keys: list[KeyView]


class CallerView(Struct, frozen=True):
    """The caller, as the server knows it."""

    id: str
    """The id of its key, or `nobody` where no key is needed."""
    tenant: str
    """The tenant that the key belongs to, or `*`."""
    scopes: tuple[Scope, ...]
    note: str
    keys_required: bool


class KeysApi(Resource, tag="access keys"):
    """Access keys."""

    def __init__(self, keys: KeysPort, clock: Clock, entropy: Entropy) -> None:
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        self._specs = Body(KeySpec)
        # Writing takes time. Without the lock, requests that arrive meanwhile would count the same keys.
        self._turn = asyncio.Lock()

    @Route("GET", KEYS, "List access keys", (ResponseKind(200, "all keys", KeysView),), access="admin")
    def list_keys(self, request: HttpRequest) -> HttpResponse:
        """The oldest comes first. Revoked keys are among them."""
        return json_response(KeysView([_view(key) for key in self._keys.ring().keys]))

    @Route(
        "GET",
        "/v1/whoami",
        "Read the access of the caller",
        (ResponseKind(200, "the caller and its access", CallerView),),
        access="any",
        no_client="a program knows which key it holds",
        no_command="everbell keys list shows the access of every key",
    )
    def whoami(self, request: HttpRequest) -> HttpResponse:
        """The operations page offers only the actions that this access allows."""
        key = self._keys.ring().get(request.who)
        if key is None:
            return json_response(CallerView(request.who, EVERY_TENANT, SCOPES, "", False))
        return json_response(CallerView(key.id, key.tenant, key.scopes, key.note, True))

    @Route(
        "POST",
        KEYS,
        "Create an access key",
        (ResponseKind(201, "the key is valid; its text is shown this once", NewKeyView),),
        access="admin",
        problems=(409,),
        body=KeySpec,
        example={"tenant": "*", "scopes": ["admin"], "note": "operations"},
    )
    async def create_key(self, request: HttpRequest) -> HttpResponse:
        """The first key has to be an operator's: the scope `admin` for all tenants."""
        spec = self._specs.read(request)
        chance = self._entropy.nonces(_NONCES)[: ID_BYTES + SECRET_BYTES]
        key, text = new_key(chance, spec.tenant, spec.scopes, self._clock.now(), spec.note)
        async with self._turn:
            ring = self._keys.ring()
            if not ring.operators and not key.is_operator:
                raise Conflict(
                    f"the first key has to be an operator's: tenant {EVERY_TENANT!r} with the scope admin; from then on"
                    " keys are required everywhere, and only an operator can make more of them"
                )
            await self._make_room(ring)
            request.subject = key.id
            await self._keys.put(key)
        view = _view(key)
        made = NewKeyView(text, view.id, view.tenant, view.scopes, view.created_at, view.note)
        return replace(json_response(made, 201), headers=(("cache-control", "no-store"),))

    @Route(
        "DELETE",
        KEYS + "/{key}",
        "Revoke an access key",
        (ResponseKind(200, "the key is not valid any more", KeyView),),
        access="admin",
        problems=(404, 409),
    )
    async def revoke_key(self, request: HttpRequest, key_id: str) -> HttpResponse:
        """A revoked key cannot become valid again. The last operator's key cannot be revoked."""
        return json_response(_view(await self._keys.revoke(key_id, self._clock.now())))

    async def _make_room(self, ring: Keyring) -> None:
        if len(ring.keys) < KEYS_MAX:
            return
        revoked = [key for key in ring.keys if key.revoked_at is not None]
        if not revoked:
            raise Conflict(f"there are {KEYS_MAX} keys, and no more are possible: revoke some")
        await self._keys.drop(min(revoked, key=lambda key: key.revoked_at or 0).id)


def _view(key: AccessKey) -> KeyView:
    return KeyView(
        key.id,
        key.tenant,
        key.scopes,
        instant(key.created_at),
        key.note,
        None if key.revoked_at is None else instant(key.revoked_at),
    )
