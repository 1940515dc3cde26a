"""Effects: the actions of a node because of an entry that it played, as values. Only the shell performs them.

They are performed in order: endings first, watching before unwatching (so that no member is unwatched in between),
and starting last.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from everbell.core.cluster.history import latest
from everbell.core.cluster.membership import DEPARTED, NAME_TAKEN, OLD_FORMAT, REFUSED
from everbell.core.cluster.value import Placement, Value
from everbell.core.cluster.watching import watched


class _Effect(msgspec.Struct, frozen=True):
    """An action."""


class Halt(_Effect, frozen=True):
    """Stop everything at once and release nothing: this incarnation is no longer a member."""

    reason: str


class Left(_Effect, frozen=True):
    """This node has left, as it asked to."""


class Ceded(_Effect, frozen=True):
    """The partition is no longer ours in this epoch. If it still runs, drop it: the store refuses its writes."""

    partition: int
    epoch: int


class Stop(_Effect, frozen=True):
    """Stop the partition, let attempts in flight end, store their outcomes, then append a release with this epoch.

    If the partition was started unclean and still waits, the wait ends first: the next owner will not know of it.
    """

    partition: int
    epoch: int


class Watch(_Effect, frozen=True):
    """Watch the lease of this incarnation. When it ends, or has ended already, append `report(me, …)`."""

    incarnation: str


class Unwatch(_Effect, frozen=True):
    """Stop watching the lease of this incarnation."""

    incarnation: str


class Inspect(_Effect, frozen=True):
    """Ask whether these leases are alive, append a `report` for each that is not, then try to join."""

    incarnations: tuple[str, ...]


class BackOff(_Effect, frozen=True):
    """The join failed. Wait for a random time, then append peer-gc and try again."""

    reason: str


class NameTaken(_Effect, frozen=True):
    """Another incarnation has our name.

    If its lease outlives the longest time without a renewal, two nodes are configured with one name: give up.
    Otherwise it is our own past: back off, clear it, try again.
    """

    incarnation: str


class Joined(_Effect, frozen=True):
    """This node is a member from here on."""


class Drained(_Effect, frozen=True):
    """This node was told to drain and owns no partition any more: it may leave."""


class Start(_Effect, frozen=True):
    """Run the partition: raise its fence to the epoch, read it, and go.

    If it is not clean, its last owner died and may still have a request in flight, so events with keys wait for one
    request deadline.
    """

    partition: int
    epoch: int
    clean: bool


Effect = Halt | Left | Ceded | Stop | Watch | Unwatch | Inspect | BackOff | NameTaken | Joined | Drained | Start


def effects(before: Value, after: Value, me: str) -> tuple[Effect, ...]:
    """The effects for `me`. To begin with a snapshot, pass NOTHING as `before`."""
    return (
        *_endings(before, after, me),
        *_partitions_to_stop(before, after, me),
        *_watches(before, after, me),
        *_joining(before, after, me),
        *_partitions_to_start(before, after, me),
    )


def _endings(before: Value, after: Value, me: str) -> Iterator[Effect]:
    if me in before.members and me not in after.members:
        entry = latest(before, after)
        if entry and entry.kind == "leave":
            yield Left()
        else:
            yield Halt(f"{entry.reason}, says {entry.by}" if entry and entry.kind == "remove" else "it was removed")


def _partitions_to_stop(before: Value, after: Value, me: str) -> Iterator[Effect]:
    for number, part in enumerate(before.partitions):
        if part.owner == me and not _is_held(after, number, me, part.epoch):
            yield Ceded(number, part.epoch)
    for number, part in enumerate(after.partitions):
        if (
            part.owner == me
            and part.to
            and not (_is_held(before, number, me, part.epoch) and before.partitions[number].to)
        ):
            yield Stop(number, part.epoch)


def _partitions_to_start(before: Value, after: Value, me: str) -> Iterator[Effect]:
    for number, part in enumerate(after.partitions):
        if part.owner == me and not part.to and not _is_held(before, number, me, part.epoch):
            yield Start(number, part.epoch, part.clean)


def _is_held(value: Value, number: int, me: str, epoch: int) -> bool:
    part = value.partitions[number] if value.partitions else Placement()
    return part.owner == me and part.epoch == epoch


def _watches(before: Value, after: Value, me: str) -> Iterator[Effect]:
    old, new = watched(before, me), watched(after, me)
    yield from (Watch(incarnation) for incarnation in new if incarnation not in old)
    yield from (Unwatch(incarnation) for incarnation in old if incarnation not in new)


def _joining(before: Value, after: Value, me: str) -> Iterator[Effect]:
    entry = latest(before, after)
    if entry and entry.what == me and entry.kind == "peer-gc":
        yield Inspect(tuple(sorted({*after.members, *after.joins} - {me})))
    if entry and entry.what == me and entry.kind == REFUSED:
        if entry.reason in (DEPARTED, OLD_FORMAT):
            yield Halt(entry.reason)
        else:
            yield NameTaken(entry.by) if entry.reason == NAME_TAKEN else BackOff(entry.reason)
    if me in before.joins and me not in after.joins and me not in after.members:
        yield BackOff(entry.reason if entry and entry.what == me else "a member that it needed left")
    if me in after.members and me not in before.members:
        yield Joined()
    if is_drained(after, me) and not is_drained(before, me):
        yield Drained()


def is_drained(value: Value, me: str) -> bool:
    """Whether a member was drained and owns no partition any more."""
    member = value.members.get(me)
    return member is not None and member.draining and all(part.owner != me for part in value.partitions)
