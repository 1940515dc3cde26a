"""Access control: one place decides whether a request is allowed, before any handler is called.

A request without a key, or with a wrong or revoked key, gets a 401. A request with a key of too little access gets a
403 that names the missing scope; the answer never reveals whether the requested object exists.

While a cluster has no keys at all, every request is allowed, if the operator wants that: on loopback, or with
`--insecure`. Once a key exists, keys are required everywhere. Revoking all of them does not lift that.

Decisions are cached by header, access and tenant until the keys change, so a known caller costs one look-up. The
look-up compares secrets in plain text, but only after a keyed hash of 64 bits was equal, so its timing leaks nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from everbell.api.route import Access
from everbell.core.access import Keyring, Scope, lacks
from everbell.errors import Forbidden, Unauthorized
from everbell.http.message import HttpRequest

NOBODY = "nobody"
"""The caller of a request that needs no key and has none."""

STRANGER = "stranger"
"""The caller of a request that needs a key and has no valid one."""

_DECIDED_MAX = 4_096


class Authorizer:
    """Allows or refuses requests. `ring` returns the current keys; `may_be_open` allows all requests without keys."""

    def __init__(self, ring: Callable[[], Keyring] = Keyring, *, may_be_open: bool = True) -> None:
        self._ring = ring
        self._may_be_open = may_be_open
        self._seen: Keyring | None = None
        self._decided: dict[tuple[str | None, Access, str | None], str] = {}

    def admit(self, request: HttpRequest, access: Access, tenant: str | None) -> str:
        """The caller: the id of its key, or `NOBODY`. Raises `Unauthorized` or `Forbidden`."""
        ring = self._ring()
        if ring is not self._seen:
            self._seen = ring
            self._decided.clear()
        shown = request.headers.get("authorization")
        who = self._decided.get((shown, access, tenant))
        return self._decide(ring, shown, access, tenant) if who is None else who

    def shuts_out(self, request: HttpRequest, access: Access, tenant: str | None) -> bool:
        """Whether a request that was allowed would be refused now."""
        try:
            self.admit(request, access, tenant)
        except (Unauthorized, Forbidden):
            return True
        return False

    def _decide(self, ring: Keyring, shown: str | None, access: Access, tenant: str | None) -> str:
        if access == "open" or (self._may_be_open and not ring.keys):
            who = NOBODY
        else:
            who = _judge(ring, shown, *_wanted(access, tenant))
        # Bounded, because a key of all tenants works with any tenant name. Refusals are not cached, so
        # guesses do not fill the cache.
        if shown is None or who != NOBODY:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            self._decided[shown, access, tenant] = who
        return who


def _wanted(access: Access, tenant: str | None) -> tuple[Scope | None, str | None]:
    """The scope that is required, and in which tenant."""
    if access == "operator":
        return "admin", None
    return None if access == "any" or access == "open" else access, tenant


def _judge(ring: Keyring, shown: str | None, scope: Scope | None, tenant: str | None) -> str:
    if shown is None:
        raise Unauthorized("this server requires an access key: send it as `Authorization: Bearer evk_…`")
    key = ring.find(shown)
    if key is None:
        raise Unauthorized("this access key is not valid here: it is wrong, or was revoked")
    lacking = lacks(key, scope, tenant)
    if lacking is not None:
        raise Forbidden(lacking, key.id)
    return key.id
