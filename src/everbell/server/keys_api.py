"""Access keys over HTTP: list them, make one, revoke one. Only for operators; the secret is shown once, when it is
made.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from everbell.clock import Clock
from everbell.core.access import (
    EVERY_TENANT,
    ID_BYTES,
    NOTE_LENGTH_MAX,
    SECRET_BYTES,
    AccessKey,
    Keyring,
    Scope,
    new_key,
)
from everbell.entropy import Entropy
from everbell.errors import Conflict
from everbell.links.port import KeysPort
from everbell.server.bodies import Body
from everbell.server.message import Request, Response
from everbell.server.moments import Instant, instant
from everbell.server.views import json_response

KEYS_MAX = 1_000
"""So many are kept; then the oldest that was revoked makes room. All nodes hold all of them in memory."""

_NONCES = 4


class KeySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make."""

    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, description="admin includes the others")]
    tenant: Annotated[str, Meta(description="whose events it is for; * for all tenants")]
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="who gets it, for people")] = ""


class KeyView(Struct, frozen=True, omit_defaults=True):
    """A key, without its secret."""

    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: Instant
    note: str = ""
    revoked_at: Instant | None = None


class NewKeyView(Struct, frozen=True, omit_defaults=True):
    """A key that was just made. Nobody can show its text again."""

    key: str
    id: str
    tenant: str
    scopes: tuple[Scope, ...]
    created_at: Instant
    note: str = ""


class KeysView(Struct, frozen=True):
    """All keys, the oldest first."""

    keys: list[KeyView]


class KeysApi:
    """The handlers of `/v1/keys`."""

    def __init__(self, keys: KeysPort, clock: Clock, entropy: Entropy) -> None:
        self._keys = keys
        self._clock = clock
        self._entropy = entropy
        self._specs = Body(KeySpec)
        # Writing takes time: without turns, all that come meanwhile would find the same room.
        self._turn = asyncio.Lock()

    def list(self, request: Request) -> Response:
        """All keys."""
        return json_response(KeysView([_view(key) for key in self._keys.ring().keys]))

    async def create(self, request: Request) -> Response:
        """Make a key."""
        spec = self._specs.read(request)
        chance = self._entropy.nonces(_NONCES)[: ID_BYTES + SECRET_BYTES]
        key, text = new_key(chance, spec.tenant, spec.scopes, self._clock.now(), spec.note)
        async with self._turn:
            ring = self._keys.ring()
            if not ring.operators and not key.is_operator:
                raise Conflict(
                    f"the first key has to be an operator's: tenant {EVERY_TENANT!r} with the scope admin; from then on"
                    " keys are needed for everything, and nobody else could make more of them"
                )
            await self._make_room(ring)
            request.subject = key.id
            await self._keys.put(key)
        view = _view(key)
        made = NewKeyView(text, view.id, view.tenant, view.scopes, view.created_at, view.note)
        return replace(json_response(made, 201), headers=(("cache-control", "no-store"),))

    async def revoke(self, request: Request, key_id: str) -> Response:
        """Shut a key out, for good."""
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
