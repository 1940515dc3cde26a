"""The commands of the log: a closed union. A node that reads any other entry halts.

A command says what its author wants or saw; `apply` computes the consequences. Appending a command twice is
harmless, because its author may not learn that the first append succeeded.
"""

from __future__ import annotations

import msgspec

from everbell.core.cluster.strategy import Strategy
from everbell.core.cluster.value import Member
from everbell.errors import UnknownCommand

FORMAT = 1
"""The newest format of the log that this version understands."""


class _Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="command"):
    """Unknown fields are refused: a node that skipped one would diverge from the nodes that know it."""


class FoundCluster(_Command, frozen=True, tag="found"):
    """The first entry of a log. Later ones are ignored, so nodes may race to write it."""

    cluster: str
    partitions: int
    format: int = FORMAT


class PeerGc(_Command, frozen=True, tag="peer-gc"):
    """A process that wants to join is about to look for dead members that no watcher has reported."""

    by: str


class PrepareJoin(_Command, frozen=True, tag="prepare-join"):
    """A process wants to join. It becomes a member at once if there is none, else it gets a place in the ring."""

    member: Member


class NotifyWatchers(_Command, frozen=True, tag="notify-watchers"):
    """The joiner watches its target; the target's watcher may now watch the joiner instead."""

    joiner: str


class AcceptJoin(_Command, frozen=True, tag="accept-join"):
    """The joiner is watched: it is a member from here on."""

    joiner: str


class AbortJoin(_Command, frozen=True, tag="abort-join"):
    """The joiner gives up for now. Ignored if it has become a member in the meantime."""

    joiner: str
    reason: str = ""


class Leave(_Command, frozen=True, tag="leave"):
    """A member leaves. It has stopped and drained all its partitions and starts none any more."""

    member: str


class Remove(_Command, frozen=True, tag="remove"):
    """The lease of a member or joiner ended: it is dead, or must act as if it were.

    One command serves both, because the watcher cannot know whether an accept gets into the log first.
    """

    member: str
    by: str
    reason: str = "its lease ended"


class Release(_Command, frozen=True, tag="release"):
    """An owner has stopped and drained these partitions, given with the epochs in which it owned them."""

    owner: str
    epochs: dict[int, int]


class SetStrategy(_Command, frozen=True, tag="set-strategy"):
    """Change the placement strategy or its weights."""

    strategy: Strategy


class Drain(_Command, frozen=True, tag="drain"):
    """Move all partitions away from the member of this name, until it is undrained or gone.

    With an incarnation, only that one is drained: an entry may get into the log late, when another process has the
    name.
    """

    name: str
    incarnation: str = ""


class Undrain(_Command, frozen=True, tag="undrain"):
    """Allow the member to own partitions again."""

    name: str


class Forget(_Command, frozen=True, tag="forget"):
    """The dead member of this name is not expected back: its stand-ins keep the partitions."""

    name: str


class PutDocument(_Command, frozen=True, tag="set-policy", rename={"name": "tenant"}):
    """Write a document: a tenant's policy, an access key or a pause. With `expected`, only over that version (0: none).

    The tag and the name of the field are older than keys and pauses; they are the format of the log.
    """

    name: str
    document: bytes
    expected: int | None = None


class DropDocument(_Command, frozen=True, tag="drop-policy", rename={"name": "tenant"}):
    """Delete a document. With `expected`, only that version."""

    name: str
    expected: int | None = None


class RaiseFormat(_Command, frozen=True, tag="raise-format"):
    """Allow commands of a newer format from here on, if all members understand them."""

    format: int


Command = (
    FoundCluster
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
    | PutDocument
    | DropDocument
    | RaiseFormat
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """The command as JSON, which people can read in the log."""
    return _ENCODER.encode(command)


def decode_command(data: bytes) -> Command:
    """The command in an entry. Raises `UnknownCommand` for anything but exactly one of the commands above."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownCommand(
            f"The log of the cluster has an entry that this version does not understand ({error}). "
            "A newer version of Everbell wrote it: upgrade this node. Skipping the entry would make this node "
            "disagree with the others, so it stops."
        ) from error
