"""Keeps the tenants' policies of a process, and pauses and kills of an engine, in step with the documents in the log.

If a process does not understand a document because a newer version wrote it, the tenant keeps its previous policy in
that process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from everbell.core.cluster import Policy
from everbell.core.document import policy_over
from everbell.core.kill import Kill, kills_in
from everbell.core.pause import Pause, pauses_in
from everbell.core.tenant import Tenants, is_tenant_name
from everbell.engine.engine import Engine
from everbell.errors import EverbellError

_log = logging.getLogger("everbell.cluster")

D = TypeVar("D")


Follow = Callable[[Mapping[str, Policy]], None]
"""Called with all documents in the log."""


class DocumentFollower:
    """Keeps an engine in step with all documents."""

    def __init__(self, engine: Engine) -> None:
        self._policies = PolicyFollower(engine.tenants, engine.adopt)
        self._orders = OrderFollower(engine.pauses.follow, engine.kills.follow)

    def follow(self, documents: Mapping[str, Policy]) -> None:
        """Apply the current documents."""
        self._policies.follow(documents)
        self._orders.follow(documents)


class OrderFollower:
    """Keeps the pauses and kills of an engine in step with the documents."""

    def __init__(self, pause: Callable[[list[Pause]], None], kill: Callable[[list[Kill]], None]) -> None:
        self._pauses = _KindFollower("it is not paused", pauses_in, pause)
        self._kills = _KindFollower("it is not killed", kills_in, kill)
        self._documents: Mapping[str, Policy] = {}

    def follow(self, documents: Mapping[str, Policy]) -> None:
        """Apply the current documents."""
        if documents is not self._documents:
            self._documents = documents
            self._pauses.follow(documents)
            self._kills.follow(documents)


class _KindFollower(Generic[D]):
    """Follows the documents of one kind."""

    def __init__(
        self,
        missing: str,
        read: Callable[[Mapping[str, Policy]], tuple[list[D], list[str]]],
        apply: Callable[[list[D]], None],
    ) -> None:
        self._missing = missing
        self._read = read
        self._apply = apply
        self._known: list[D] = []
        self._unclear: list[str] = []

    def follow(self, documents: Mapping[str, Policy]) -> None:
        known, unclear = self._read(documents)
        if unclear != self._unclear:
            self._unclear = unclear
            for name in unclear:
                _log.error("%s is not understood here, because a newer version wrote it: %s", name, self._missing)
        if known != self._known:
            self._known = known
            self._apply(known)


class PolicyFollower:
    """Keeps the policies of one process in step with the documents."""

    def __init__(self, tenants: Tenants, on_change: Callable[[str], None] = lambda name: None) -> None:
        self._tenants = tenants
        self._on_change = on_change
        self._documents: Mapping[str, Policy] = {}

    def follow(self, documents: Mapping[str, Policy]) -> None:
        """Apply the current documents."""
        before, self._documents = self._documents, documents
        if documents is before:
            return
        for name in {**before, **documents}:
            policy = documents.get(name)
            if policy != before.get(name) and is_tenant_name(name):
                self._change(name, policy)

    def _change(self, name: str, policy: Policy | None) -> None:
        tenants = self._tenants
        try:
            document = None if policy is None else msgspec.json.decode(policy.document)
            tenants.override(name, None if document is None else policy_over(tenants.base(name), document))
        except (EverbellError, msgspec.MsgspecError) as unclear:
            _log.error("tenant %s keeps the policy it had; its document is not understood here: %s", name, unclear)
            return
        self._on_change(name)
