"""Every error that Everbell raises on purpose.

One root, families by who is to blame and what to do about it. The messages are written for the person who reads them:
they say what is wrong and what would be right. The HTTP edge turns them into RFC 9457 problems by `status` and
`slug`.
"""

from __future__ import annotations

from typing import Self


class EverbellError(Exception):
    """The root of all errors of Everbell."""

    status = 500
    slug = "internal"
    title = "Something went wrong inside Everbell"
    retry_after_s: int | None = None
    """When it is worth trying again, where that may help."""

    def as_value(self) -> Self:
        """The error, to be kept or told and not raised any further: without the frames that it came through. They hold
        all that was theirs, whole requests too, and mostly the error as well, so only the collector would free them.
        """
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class InvalidInput(EverbellError):
    """The caller sent something that cannot be accepted; sending it again will not help."""

    status = 422
    slug = "invalid"
    title = "The request is not valid"

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.reason = reason
        self.field = field


class MalformedInput(InvalidInput):
    """The request could not even be read: broken JSON, a wrong content type."""

    status = 400
    slug = "malformed"
    title = "The request cannot be read"


class TooLarge(InvalidInput):
    """A size limit was passed."""

    status = 413
    slug = "too-large"
    title = "The request is too large"


class Unauthorized(EverbellError):
    """The server wants an access key, and got none that counts."""

    status = 401
    slug = "unauthorized"
    title = "An access key is needed"


class Forbidden(EverbellError):
    """The access key does not reach this far."""

    status = 403
    slug = "forbidden"
    title = "The access key does not allow this"

    def __init__(self, message: str, who: str = "") -> None:
        super().__init__(message)
        self.who = who
        """The id of the key."""


class NotFound(EverbellError):
    """There is no such thing, or no longer."""

    status = 404
    slug = "not-found"
    title = "Not found"


class Conflict(EverbellError):
    """The event is not in a state in which this can be done."""

    status = 409
    slug = "conflict"
    title = "The event's state does not allow this"


class VersionMismatch(EverbellError):
    """The event was changed since the version that the caller named."""

    status = 412
    slug = "version-mismatch"
    title = "The event was changed in the meantime"


class Overloaded(EverbellError):
    """Everbell cannot take more at the moment; nothing was stored; try again after `retry_after_s`."""

    status = 503
    slug = "overloaded"
    title = "Everbell cannot take more at the moment"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Stopping(Overloaded):
    """This process is shutting down; another one, or the same one after its restart, will answer."""

    slug = "stopping"
    title = "Everbell is stopping"


class Throttled(Overloaded):
    """The tenant has used up what its policy allows; nothing was stored; try again after `retry_after_s`."""

    status = 429
    slug = "throttled"
    title = "The tenant has used up its quota"


class OutcomeUnknown(EverbellError):
    """The process or node that was asked ended before it answered. Repeating is safe with an id of your own."""

    status = 504
    slug = "unknown-outcome"
    title = "It is not known whether this was done"


class NotOwner(Overloaded):
    """Another node owns the partition, or nobody does at the moment; nothing was stored."""

    slug = "moving"
    title = "The partition is moving between nodes"


class StoreError(EverbellError):
    """The store failed; see its subclasses."""

    slug = "store"
    title = "The store failed"


class StoreFull(StoreError):
    """The disk has no room. Nothing of the refused batch was stored; what was stored before still goes out."""

    status = 507
    slug = "disk-full"
    title = "The store has no room"


class StoreBroken(StoreError):
    """A write or fsync failed, so what is durable is unknown. The process must end and recover from the log."""


class StoreCorrupt(StoreError):
    """Stored bytes are not what was written. Nothing is dropped silently: the store refuses to go on."""


class StoreUnusable(StoreError):
    """The store cannot be opened: wrong place, wrong format, in use by another process."""


class StoreUnavailable(StoreError):
    """The store is away for the moment. Nothing of what was asked was done; trying again may help."""

    status = 503
    slug = "store-unavailable"
    title = "The store is not available"
    retry_after_s = 1


class Fenced(StoreError):
    """Others own these partitions now, by a higher epoch; this node must stop writing to them."""

    def __init__(self, message: str, partitions: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.partitions = partitions


class LogError(EverbellError):
    """The log of the cluster failed; see its subclasses."""

    slug = "log"
    title = "The log of the cluster failed"


class LogUnavailable(LogError):
    """The log is away for the moment; trying again may help. A command that was to be appended is not in it."""

    status = 503
    slug = "log-unavailable"
    title = "The log of the cluster is not available"
    retry_after_s = 1


class LogUncertain(LogError):
    """The answer to an append was lost: the command may be in the log, or may yet appear. Repeating it is safe."""

    status = 503
    slug = "log-uncertain"
    title = "It is not known whether the command reached the log of the cluster"
    retry_after_s = 1


class Trimmed(LogError):
    """The entry after this index is no longer in the log. Begin with the snapshot."""

    @classmethod
    def at(cls, after: int) -> Trimmed:
        return cls(f"the entry after {after} was trimmed: begin with the snapshot")


class LogBroken(LogError):
    """A write or fsync of the local log failed, so what is durable is unknown. The process must end and start again."""


class LogCorrupt(LogError):
    """Stored bytes are not what was written. Nothing is dropped silently: the log refuses to go on."""


class LogUnusable(LogError):
    """The log cannot be opened: a wrong URL, a wrong password, no permission, in use by another process."""


class Unreachable(EverbellError):
    """A client could not reach the server, or got no answer; the outcome of what was asked is unknown."""

    status = 502
    slug = "unreachable"
    title = "The server cannot be reached"


class ClusterError(EverbellError):
    """The cluster cannot go on as it is, or not with this node; see its subclasses."""

    slug = "cluster"
    title = "The cluster cannot go on with this node"


class UnknownCommand(ClusterError):
    """The log has an entry that this version does not understand: a newer one wrote it. Upgrade this node."""


class UnknownSnapshot(ClusterError):
    """The snapshot of the cluster is not one that this version understands. Upgrade this node."""


class BrokenInvariant(ClusterError):
    """The cluster's value is not what it must be: a bug. The node stops before it does harm. Please report it."""
