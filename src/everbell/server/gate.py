"""The gate: who may do what, decided in one place before any handler is asked.

Whoever shows no key, a wrong one or a revoked one is told so (401); whoever shows a key that does not reach far enough
learns what it lacks (403), and never whether what was asked for exists.

While a cluster has no keys at all, everybody who reaches the server may do everything, if its operator wants that: on
loopback, or with `--insecure`. From the first key on, keys count, everywhere and for good: revoking them all does not
open the gate again.

What was decided is kept by header, scope and tenant until the keys change, so a known caller costs a look-up. That the
look-up compares plain text gives nothing away: it compares at all only after a keyed hash of 64 bits was equal.
"""

from __future__ import annotations

from collections.abc import Callable

from everbell.core.access import Keyring, Scope, lacks
from everbell.errors import Forbidden, Unauthorized
from everbell.server.message import Request
from everbell.server.route import Access

NOBODY = "nobody"
"""Who asks without a key, where none is needed."""

_DECIDED_MAX = 4_096


class Gate:
    """Lets requests through. `ring` gives the keys as they are now; `may_be_open`: without keys, everybody may come."""

    def __init__(self, ring: Callable[[], Keyring] = Keyring, *, may_be_open: bool = True) -> None:
        self._ring = ring
        self._may_be_open = may_be_open
        self._seen: Keyring | None = None
        self._decided: dict[tuple[str | None, Access, str | None], str] = {}

    def admit(self, request: Request, access: Access, tenant: str | None) -> str:
        """Who asks: the id of the key, or `NOBODY`. Raises `Unauthorized` or `Forbidden`."""
        ring = self._ring()
        if ring is not self._seen:
            self._seen = ring
            self._decided.clear()
        shown = request.headers.get("authorization")
        who = self._decided.get((shown, access, tenant))
        return self._decide(ring, shown, access, tenant) if who is None else who

    def shuts_out(self, request: Request, access: Access, tenant: str | None) -> bool:
        """Whether a request that was let in would not be let in any more."""
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
        # Bounded: keys of all tenants work with any name. Refusals are not kept, so nobody can fill it with guesses.
        if shown is None or who != NOBODY:
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            self._decided[shown, access, tenant] = who
        return who


def _wanted(access: Access, tenant: str | None) -> tuple[Scope | None, str | None]:
    """The scope that is asked for, and in which tenant."""
    if access == "operator":
        return "admin", None
    return None if access == "any" or access == "open" else access, tenant


def _judge(ring: Keyring, shown: str | None, scope: Scope | None, tenant: str | None) -> str:
    if shown is None:
        raise Unauthorized("this server wants an access key: send it as `Authorization: Bearer evk_…`")
    key = ring.find(shown)
    if key is None:
        raise Unauthorized("this access key does not count here: it is wrong, or was revoked")
    lacking = lacks(key, scope, tenant)
    if lacking is not None:
        raise Forbidden(lacking, key.id)
    return key.id
