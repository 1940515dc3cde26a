"""Pauses: a tenant, or one of its keys, targets or queues, of which nothing is to be delivered for now.

What is paused is still taken in and kept; it goes out when the pause is over. Pauses are documents in the cluster's
log, each under a name that no tenant can have, which says what is paused: so there is one pause of a thing, it is the
same on every node, and it outlives them all. One with an end is over by the clock of each node; its document is left
to whoever writes the next one.

Targets are paused as a whole group, as caps work on groups: a host with all its URLs, a Kafka cluster with all its
topics (`kafka://`, or `kafka://name/`).
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
"""What the names of pauses begin with among the documents in the log. Names of tenants have no slash."""

_KAFKA = "kafka://"

PAUSES_MAX = 10_000
"""All nodes hold all pauses in memory."""
TENANT_PAUSES_MAX = 100
"""Of one tenant. Of each key that is paused, one event may be in memory."""


class PauseSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """What to pause, why, and until when."""

    what: Annotated[What, Meta(description="the whole tenant, or one of its keys, targets or queues")]
    name: Annotated[str, Meta(description="of a key or queue; a target as in https://shop.example")] | None = None
    note: Annotated[str, Meta(max_length=NOTE_LENGTH_MAX, description="why, for people")] | None = None
    until: Annotated[str, Meta(description="RFC 3339; it goes on then by itself")] | None = None
    for_: Annotated[Duration, Meta(description="or for how long")] | None = msgspec.field(default=None, name="for")


class Pause(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is paused."""

    tenant: str
    what: What
    name: str
    """Of a key, a queue or a handler; of a host or a Kafka cluster a URL without a path; of a tenant nothing."""
    since_at: int
    by: str
    """The id of the access key that asked for it, or `nobody`, where none was needed."""
    note: str | None = None
    until_at: int | None = None

    @property
    def place(self) -> str:
        """The name of its document."""
        return place_of(self.tenant, self.what, self.name)

    @property
    def label(self) -> str:
        """What is paused, in words."""
        return label_of(self.tenant, self.what, self.name)

    def is_on(self, now: int) -> bool:
        """Whether it holds."""
        return self.until_at is None or now < self.until_at


class Put(Struct, frozen=True):
    """What became of a pause that somebody asked for."""

    pause: Pause
    """As it is kept."""
    is_new: bool
    unheard: tuple[str, ...] = ()
    """The nodes that could not say that they know of it."""


class Held(Struct, frozen=True):
    """All that is paused at one moment, in the form in which the engine asks."""

    tenants: frozenset[str] = frozenset()
    groups: frozenset[tuple[str, str]] = frozenset()
    """By tenant and group of targets."""
    keys: frozenset[tuple[str, str]] = frozenset()

    def holds(self, tenant: str, group: str) -> bool:
        """Whether what the tenant sends to the group has to wait."""
        return tenant in self.tenants or (tenant, group) in self.groups


def place_of(tenant: str, what: What, name: str) -> str:
    """The name of the document of a pause; whatever is in the last part, there is nothing after it."""
    return f"{DOCUMENTS}{tenant}/{what}/{name}"


def label_of(tenant: str, what: What, name: str) -> str:
    """Something of a tenant, in words."""
    return f"{what} {name!r}" if name else f"tenant {tenant!r}"


def thing_of(what: What, name: str | None) -> tuple[What, str]:
    """What a user means, written in the one way in which it is kept. Raises `InvalidInput`."""
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
    """The pauses among the documents of a cluster, the oldest first, and the names of those that are not understood,
    because a newer version wrote them."""
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
        _group_named(pause.name)
    return pause


def held_by(pauses: Iterable[Pause]) -> Held:
    """What these pauses hold up together."""
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
                groups.add((pause.tenant, _group_named(pause.name)))
            case "queue":
                groups.add((pause.tenant, f"queue:{pause.name}"))
    return Held(frozenset(tenants), frozenset(groups), frozenset(keys))


def _group_named(name: str) -> str:
    """The group of a target that is paused."""
    if name.startswith(_KAFKA):
        return _KAFKA + name.removeprefix(_KAFKA).removesuffix("/")
    return group_of(name)


_decode = msgspec.json.Decoder(Pause).decode


def _group(target: str) -> str:
    try:
        return group_of(target)
    except InvalidInput as wrong:
        raise InvalidInput(wrong.reason, "name") from None
