"""Kills: everything of a tenant with a certain tag, key or target ends, or everything of the tenant.

A kill ends the events that exist, also recurring and dead ones, and those that arrive until it is lifted. They end as
cancelled, with the kill as their reason. Kills are documents in the cluster's log, like pauses, so all nodes agree.

A target is killed exactly as it is written, if it is a URL with a path or a Kafka topic. A host without a path stands
for all its URLs, and `kafka://name/` for all topics of a Kafka cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from everbell.core.cluster.value import Policy
from everbell.core.event import Event, Record
from everbell.core.pause import group_named, thing_of
from everbell.core.spec import NOTE_LENGTH_MAX, check_name, check_note
from everbell.core.target import group_of
from everbell.core.verdict import record_of
from everbell.errors import InvalidInput

KillKind = Literal["tenant", "tag", "key", "target"]

KILL_DOCUMENTS = "/kills/"
"""The prefix of kills among the documents in the log. Tenant names have no slash."""

TENANT_KILLS_MAX = 100
"""A limit, because every event that starts is compared with the kills of its tenant."""
KILLS_MAX = 10_000
"""A limit, because every node holds all kills in memory."""


class KillSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The things to end, and the reason."""

    what: Annotated[KillKind, Meta(description="the whole tenant, or its events with a tag, a key or a target")]
    name: Annotated[str, Meta(description="of the tag or key; a URL; or a host, as in https://shop.example")] | None = (
        None
    )
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="why, for people")] | None = None


class Kill(Struct, frozen=True, forbid_unknown_fields=True):
    """A kill that is in force."""

    tenant: str
    what: KillKind
    name: str
    """A tag, key or target; empty for a tenant."""
    since_at: int
    by: str
    """The id of the access key that asked for it, or `nobody` where no key was needed."""
    note: str | None = None

    @property
    def place(self) -> str:
        """The name of the kill's document."""
        return kill_place(self.tenant, self.what, self.name)

    @property
    def label(self) -> str:
        """The killed things in words."""
        return kill_label(self.tenant, self.what, self.name)

    @property
    def reason(self) -> str:
        """The reason that the records of ended events have."""
        return f"killed with {self.label} by {self.by}" + (f": {self.note}" if self.note else "")


class PutKilled(Struct, frozen=True):
    """The answer to a request for a kill."""

    kill: Kill
    is_new: bool
    unheard: tuple[str, ...] = ()
    """The nodes that did not confirm that they know of the kill."""


class KillCount(Struct, frozen=True):
    """The number of events that a kill has ended, and whether some node still searches for events to end."""

    ended: int = 0
    is_searching: bool = False

    def plus(self, other: KillCount) -> KillCount:
        return KillCount(self.ended + other.ended, self.is_searching or other.is_searching)


class Tagged(Protocol):
    """The part of an event or a draft that kills look at."""

    @property
    def key(self) -> str | None: ...

    @property
    def to(self) -> str: ...

    @property
    def tags(self) -> tuple[str, ...]: ...


def kill_place(tenant: str, what: KillKind, name: str) -> str:
    """The name of a kill's document. The name comes last, so it may contain any character."""
    return f"{KILL_DOCUMENTS}{tenant}/{what}/{name}"


def kill_label(tenant: str, what: KillKind, name: str) -> str:
    return f"{what} {name!r}" if name else f"tenant {tenant!r}"


def killed_thing(what: KillKind, name: str | None) -> tuple[KillKind, str]:
    """The canonical form of a thing that a user names. Raises `InvalidInput`."""
    if what == "tag":
        if not name:
            raise InvalidInput("say which tag", "name")
        check_name(name, "name")
        return what, name
    if what != "target":
        return what, thing_of(what, name)[1]
    if not name:
        raise InvalidInput("say which target", "name")
    try:
        kind, whole = thing_of("target", name)
    except InvalidInput:
        group_of(name)  # A URL with a path, or a topic. Raises for anything else.
        return what, name
    return what, f"queue:{whole}" if kind == "queue" else whole


def kill_of(tenant: str, spec: KillSpec, by: str, now: int) -> Kill:
    """A kill that begins now. Raises `InvalidInput`."""
    what, name = killed_thing(spec.what, spec.name)
    return Kill(tenant, what, name, now, by, check_note(spec.note))


def encode_kill(kill: Kill) -> bytes:
    """The kill as a document."""
    return msgspec.json.encode(kill)


def kills_in(documents: Mapping[str, Policy]) -> tuple[list[Kill], list[str]]:
    """The kills among the documents of a cluster, oldest first, and the names of documents that a newer version wrote
    in a form that this version cannot read.
    """
    kills: list[Kill] = []
    unclear: list[str] = []
    for name, policy in documents.items():
        if name.startswith(KILL_DOCUMENTS):
            try:
                kills.append(_decode(policy.document))
            except msgspec.MsgspecError:
                unclear.append(name)
    return sorted(kills, key=lambda kill: (kill.since_at, kill.place)), unclear


class TenantKills:
    """The kills of one tenant, in the form that finds the kill of an event."""

    def __init__(self, kills: Sequence[Kill]) -> None:
        self._whole = next((kill for kill in kills if kill.what == "tenant"), None)
        self._tags = {kill.name: kill for kill in kills if kill.what == "tag"}
        self._keys: dict[str | None, Kill] = {kill.name: kill for kill in kills if kill.what == "key"}
        targets = [kill for kill in kills if kill.what == "target"]
        self._targets = {kill.name: kill for kill in targets}
        self._groups = {group: kill for kill in targets if (group := _whole_group(kill.name)) is not None}

    def kill_of(self, event: Tagged) -> Kill | None:
        """The kill that ends an event, if there is one."""
        if self._whole is not None:
            return self._whole
        if (kill := self._keys.get(event.key)) is not None or (kill := self._targets.get(event.to)) is not None:
            return kill
        for tag in event.tags if self._tags else ():
            if (kill := self._tags.get(tag)) is not None:
                return kill
        return self._groups.get(_group_of(event.to)) if self._groups else None


def kills_by_tenant(kills: Iterable[Kill]) -> dict[str, TenantKills]:
    """The kills of each tenant that has some."""
    found: dict[str, list[Kill]] = {}
    for kill in kills:
        found.setdefault(kill.tenant, []).append(kill)
    return {tenant: TenantKills(its) for tenant, its in found.items()}


def killed(event: Event, kill: Kill, now: int) -> Record:
    """The record of an event that a kill has ended."""
    return record_of(event, "cancelled", now, event.attempt_count, event.attempts, kill.reason, event.course)


def _whole_group(name: str) -> str | None:
    """The target group that a killed target stands for. None: it stands for itself alone."""
    try:
        kind, _ = thing_of("target", name)
        return name if kind == "queue" else group_named(name)
    except InvalidInput:
        return None


def _group_of(target: str) -> str:
    try:
        return group_of(target)
    except InvalidInput:
        return target  # The target was valid when it was scheduled.


_decode = msgspec.json.Decoder(Kill).decode
