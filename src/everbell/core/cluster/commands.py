"""The commands of the log: a closed union. What is not in it halts the node that reads it.

A command says what somebody wants or saw, not what follows from it: that is computed by `apply`. Every command can be
appended twice without harm, because whoever appends it may not learn that it was appended.
"""

from __future__ import annotations

import msgspec

from everbell.core.cluster.strategy import Strategy
from everbell.core.cluster.value import Member
from everbell.errors import UnknownCommand

FORMAT = 1
"""The newest format of the log that this version understands."""


class _Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="command"):
    """Unknown fields are refused: to skip one would be to do something else than the nodes that know it."""


class Found(_Command, frozen=True, tag="found"):
    """The first entry of a log. Later ones are ignored, so nodes may race to write it."""

    cluster: str
    partitions: int
    format: int = FORMAT


class PeerGc(_Command, frozen=True, tag="peer-gc"):
    """A process that wants to join is going to look which members are dead without anybody having said so."""

    by: str


class PrepareJoin(_Command, frozen=True, tag="prepare-join"):
    """A process wants to join. It becomes a member at once if there is none, else it gets a place in the ring."""

    member: Member


class NotifyWatchers(_Command, frozen=True, tag="notify-watchers"):
    """The joiner watches its target; whoever watched that one may now watch the joiner instead."""

    joiner: str


class AcceptJoin(_Command, frozen=True, tag="accept-join"):
    """The joiner is watched: it is a member from here on."""

    joiner: str


class AbortJoin(_Command, frozen=True, tag="abort-join"):
    """The joiner gives up for now. Ignored if it has become a member in the meantime."""

    joiner: str
    reason: str = ""


class Leave(_Command, frozen=True, tag="leave"):
    """A member leaves. It has stopped and drained everything that it owned, and starts nothing any more."""

    member: str


class Remove(_Command, frozen=True, tag="remove"):
    """The lease of a member or joiner ended: it is dead, or must act as if it were.

    One command for both, because whoever saw the lease end cannot know whether an accept gets into the log first.
    """

    member: str
    by: str
    reason: str = "its lease ended"


class Release(_Command, frozen=True, tag="release"):
    """An owner has stopped and drained these partitions, given with the epochs in which it owned them."""

    owner: str
    epochs: dict[int, int]


class SetStrategy(_Command, frozen=True, tag="set-strategy"):
    """Share out the partitions in another way, or with other weights."""

    strategy: Strategy


class Drain(_Command, frozen=True, tag="drain"):
    """Move everything away from the member of this name, until it is undrained or gone; only if it is this incarnation,
    where one is given: an entry may get into the log late, and is not meant for whoever has the name then.
    """

    name: str
    incarnation: str = ""


class Undrain(_Command, frozen=True, tag="undrain"):
    """Let it own partitions again."""

    name: str


class Forget(_Command, frozen=True, tag="forget"):
    """The dead member of this name is not expected back: those who stand in for it keep what they have."""

    name: str


class SetPolicy(_Command, frozen=True, tag="set-policy"):
    """Write the policy of a tenant; only if its version is `expected`, where one is given (0: there is none yet)."""

    tenant: str
    document: bytes
    expected: int | None = None


class DropPolicy(_Command, frozen=True, tag="drop-policy"):
    """Delete the policy of a tenant; only if its version is `expected`, where one is given."""

    tenant: str
    expected: int | None = None


class RaiseFormat(_Command, frozen=True, tag="raise-format"):
    """Allow commands of a newer format from here on, if all members understand them."""

    format: int


Command = (
    Found
    | PeerGc
    | PrepareJoin
    | NotifyWatchers
    | AcceptJoin
    | AbortJoin
    | Leave
    | Remove
    | Release
    | SetStrategy
    | Drain
    | Undrain
    | Forget
    | SetPolicy
    | DropPolicy
    | RaiseFormat
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """The command as JSON, which people can read where the log is kept."""
    return _ENCODER.encode(command)


def decode_command(data: bytes) -> Command:
    """The command in an entry. Raises UnknownCommand for anything that is not exactly one of those above."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownCommand(
            f"The log of the cluster has an entry that this version does not understand ({error}). "
            "A newer version of Everbell wrote it: upgrade this node. Skipping the entry would make this node "
            "disagree with the others, so it stops."
        ) from error
