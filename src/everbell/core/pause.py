"""Pauses: a tenant, or one of its keys, targets or queues, is not delivered to for a while.

Paused events are still accepted and stored; they are delivered when the pause ends. Pauses are documents in the
cluster's log. A document's name says what is paused and is no valid tenant name. So a thing has at most one pause,
and all nodes agree. Each node ends a pause with an end by its own clock; the next writer of a pause removes the
document.

A target is paused with its whole group, as for caps: a host with all its URLs, a Kafka cluster with all its topics
(`kafka://`, or `kafka://name/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from everbell.core.cluster.value import Policy
from everbell.core.spec import NOTE_LENGTH_MAX, check_name, check_note
from everbell.core.target import group_of
from everbell.core.time import Duration, check_instant, format_instant, parse_duration, parse_instant
from everbell.core.url import authority_of, split_url
from everbell.errors import InvalidInput

What = Literal["tenant", "key", "target", "queue"]

DOCUMENTS = "/pauses/"
"""The prefix of pauses among the documents in the log. Tenant names have no slash."""

_KAFKA = "kafka://"

PAUSES_MAX = 10_000
"""A limit, because every node holds all pauses in memory."""
TENANT_PAUSES_MAX = 100
"""A limit for one tenant, because one event of each paused key may be in memory."""


class PauseSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The thing to pause, the reason, and the end."""

    what: Annotated[What, Meta(description="the whole tenant, or one of its keys, targets or queues")]
    name: Annotated[str, Meta(description="of a key or queue; a target as in https://shop.example")] | None = None
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="why, for people")] | None = None
    until: Annotated[str, Meta(description="RFC 3339; it goes on then by itself")] | None = None
    for_: Annotated[Duration, Meta(description="or for how long")] | None = msgspec.field(default=None, name="for")


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    """A paused thing."""

    tenant: str
    what: What
    name: str
    """A key, queue or handler; a URL without a path for a host or a Kafka cluster; empty for a tenant."""
    since_at: int
    by: str
    """The id of the access key that asked for the pause, or `nobody` where no key was needed."""
    note: str | None = None
    until_at: int | None = None

    @property
    def place(self) -> str:
        """The name of the pause's document."""
        return place_of(self.tenant, self.what, self.name)

    @property
    def label(self) -> str:
        """The paused thing in words."""
        return label_of(self.tenant, self.what, self.name)

    def is_on(self, now: int) -> bool:
        """Whether the pause is in force."""
        return self.until_at is None or now < self.until_at


class PauseInForce(Struct, frozen=True, omit_defaults=True):
    """A pause as views of queues, targets and events show it."""

    what: What
    since: str
    by: str
    name: str | None = None
    note: str | None = None
    until: str | None = None

    @classmethod
    def of(cls, pause: Pause) -> PauseInForce:
        until = None if pause.until_at is None else format_instant(pause.until_at)
        return cls(pause.what, format_instant(pause.since_at), pause.by, pause.name or None, pause.note, until)


class Put(Struct, frozen=True):
    """The answer to a request for a pause."""

    pause: Pause
    """The pause as stored."""
    is_new: bool
    unheard: tuple[str, ...] = ()
    """The nodes that did not confirm that they know of the pause."""


class Held(Struct, frozen=True):
    """All pauses in force at one moment, in the form that the engine looks up."""

    tenants: frozenset[str] = frozenset()
    groups: frozenset[tuple[str, str]] = frozenset()
    """Pairs of tenant and target group."""
    keys: frozenset[tuple[str, str]] = frozenset()

    def holds(self, tenant: str, group: str) -> bool:
        """Whether the tenant's deliveries to the group have to wait."""
        return tenant in self.tenants or (tenant, group) in self.groups


def place_of(tenant: str, what: What, name: str) -> str:
    """The name of a pause's document. The name comes last, so it may contain any character."""
    return f"{DOCUMENTS}{tenant}/{what}/{name}"


def label_of(tenant: str, what: What, name: str) -> str:
    """A thing of a tenant in words."""
    return f"{what} {name!r}" if name else f"tenant {tenant!r}"


def thing_of(what: What, name: str | None) -> tuple[What, str]:
    """The canonical form of a thing that a user names. Raises `InvalidInput`."""
    if what == "tenant":
        if name:
            raise InvalidInput("goes with a key, a target or a queue; the tenant is the one in the path", "name")
        return what, ""
    if not name:
        raise InvalidInput(f"say which {what}", "name")
    if what == "key":
        check_name(name, "name")
        return what, name
    if what == "queue":
        return what, _group(f"queue:{name}").partition(":")[2]
    if name == _KAFKA or (name.startswith(_KAFKA) and name.endswith("/")):
        _group(f"{name}any-topic")
        return what, name
    group = _group(name)
    if group.startswith(_KAFKA):
        whole = group if group == _KAFKA else f"{group}/"
        raise InvalidInput(f"a Kafka cluster is paused with all its topics: write {whole}", "name")
    if group.startswith("queue:"):
        return "queue", group.partition(":")[2]
    if group.startswith("handler:"):
        return what, group
    scheme, host, port, path = split_url(name)
    url = f"{scheme}://{authority_of(scheme, host, port)}"
    if path != "/":
        raise InvalidInput(f"a host is paused with all its URLs: write {url}", "name")
    return what, url


def pause_of(tenant: str, spec: PauseSpec, by: str, now: int) -> Pause:
    """A pause that begins now. Raises `InvalidInput`."""
    what, name = thing_of(spec.what, spec.name)
    if spec.until is not None and spec.for_ is not None:
        raise InvalidInput("give either until or for, not both", "for")
    until_at = None
    if spec.for_ is not None:
        until_at = check_instant(now + parse_duration(spec.for_, "for"), "for")
    elif spec.until is not None:
        until_at = parse_instant(spec.until, "until")
    if until_at is not None and until_at <= now:
        field = "until" if spec.until is not None else "for"
        raise InvalidInput(f"{format_instant(until_at)} is over: give a time to come, or none", field)
    return Pause(tenant, what, name, now, by, check_note(spec.note), until_at)


def encode_pause(pause: Pause) -> bytes:
    """The pause as a document."""
    return msgspec.json.encode(pause)


def pauses_in(documents: Mapping[str, Policy]) -> tuple[list[Pause], list[str]]:
    """The pauses among the documents of a cluster, oldest first, and the names of documents that a newer version wrote
    in a form that this version cannot read.
    """
    pauses: list[Pause] = []
    unclear: list[str] = []
    for name, policy in documents.items():
        if name.startswith(DOCUMENTS):
            try:
                pauses.append(_understood(policy.document))
            except (msgspec.MsgspecError, InvalidInput):
                unclear.append(name)
    return sorted(pauses, key=lambda pause: (pause.since_at, pause.place)), unclear


def _understood(document: bytes) -> Pause:
    pause = _decode(document)
    if pause.what == "target":
        group_named(pause.name)
    return pause


def pause_of_group(pauses: Iterable[Pause], tenant: str, group: str) -> Pause | None:
    """The first of these pauses that holds the tenant's deliveries to a target group."""
    return next((pause for pause in pauses if pause.tenant == tenant and held_by((pause,)).holds(tenant, group)), None)


def held_by(pauses: Iterable[Pause]) -> Held:
    """The union of these pauses."""
    tenants: set[str] = set()
    groups: set[tuple[str, str]] = set()
    keys: set[tuple[str, str]] = set()
    for pause in pauses:
        match pause.what:
            case "tenant":
                tenants.add(pause.tenant)
            case "key":
                keys.add((pause.tenant, pause.name))
            case "target":
                groups.add((pause.tenant, group_named(pause.name)))
            case "queue":
                groups.add((pause.tenant, f"queue:{pause.name}"))
    return Held(frozenset(tenants), frozenset(groups), frozenset(keys))


def group_named(name: str) -> str:
    """The group of a paused target."""
    if name.startswith(_KAFKA):
        return _KAFKA + name.removeprefix(_KAFKA).removesuffix("/")
    return group_of(name)


_decode = msgspec.json.Decoder(Pause).decode


def _group(target: str) -> str:
    try:
        return group_of(target)
    except InvalidInput as wrong:
        raise InvalidInput(wrong.reason, "name") from None
