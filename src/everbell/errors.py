"""Every error that Everbell raises on purpose.

There is one root, and families by cause and remedy. A message names the fault and the remedy. The HTTP
edge turns errors into RFC 9457 problems by `status` and `slug`.
"""

from __future__ import annotations

from typing import Self


class EverbellError(Exception):
    """The root of all errors of Everbell."""

    status = 500
    slug = "internal"
    title = "Something went wrong inside Everbell"
    retry_after_s: int | None = None
    """After how many seconds a retry may help."""

    def as_value(self) -> Self:
        """The error without its frames, to be stored or sent rather than raised. Frames hold whole requests, and
        usually the error itself, so that only the garbage collector would free them.
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
    """The request could not be parsed: broken JSON, a wrong content type."""

    status = 400
    slug = "malformed"
    title = "The request cannot be read"


class TooLarge(InvalidInput):
    """The request exceeds a size limit."""

    status = 413
    slug = "too-large"
    title = "The request is too large"


class Unauthorized(EverbellError):
    """The server needs an access key, and the request has no valid one."""

    status = 401
    slug = "unauthorized"
    title = "An access key is needed"


class Forbidden(EverbellError):
    """The access key does not allow this request."""

    status = 403
    slug = "forbidden"
    title = "The access key does not allow this"

    def __init__(self, message: str, who: str = "") -> None:
        super().__init__(message)
        self.who = who
        """The id of the key."""


class NotFound(EverbellError):
    """The thing does not exist, or no longer exists."""

    status = 404
    slug = "not-found"
    title = "Not found"


class Conflict(EverbellError):
    """The event's state does not allow the request."""

    status = 409
    slug = "conflict"
    title = "The event's state does not allow this"


class BeingDelivered(Conflict):
    """An attempt of the event is in flight, so it cannot be replaced now. A retry may help."""

    slug = "being-delivered"


class VersionMismatch(EverbellError):
    """The event has changed since the version that the caller named."""

    status = 412
    slug = "version-mismatch"
    title = "The event was changed in the meantime"


class Overloaded(EverbellError):
    """Everbell cannot accept more at the moment. Nothing was stored. Try again after `retry_after_s`."""

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
    """The tenant has used up its quota. Nothing was stored. Try again after `retry_after_s`."""

    status = 429
    slug = "throttled"
    title = "The tenant has used up its quota"


class OutcomeUnknown(EverbellError):
    """The process or node ended before it answered. Repeating the request is safe if it names its own id."""

    status = 504
    slug = "unknown-outcome"
    title = "It is not known whether this was done"


class NotOwner(Overloaded):
    """Another node owns the partition, or no node does at the moment. Nothing was stored."""

    slug = "moving"
    title = "The partition is moving between nodes"


class StoreError(EverbellError):
    """The store failed; see its subclasses."""

    slug = "store"
    title = "The store failed"


class StoreFull(StoreError):
    """The disk is full. Nothing of the refused batch was stored; events stored before are still delivered."""

    status = 507
    slug = "disk-full"
    title = "The store has no room"


class StoreBroken(StoreError):
    """A write or fsync failed, so the durable state is unknown. The process must end and recover from its write-ahead
    log.
    """


class StoreCorrupt(StoreError):
    """Stored bytes differ from those written. The store refuses to go on, so that nothing is dropped silently."""


class StoreUnusable(StoreError):
    """The store cannot be opened: a wrong place, a wrong format, or in use by another process."""


class StoreUnavailable(StoreError):
    """The store is not available at the moment. Nothing was done; a retry may help."""

    status = 503
    slug = "store-unavailable"
    title = "The store is not available"
    retry_after_s = 1


class Fenced(StoreError):
    """Other nodes own these partitions by a higher epoch. This node must stop writing to them."""

    def __init__(self, message: str, partitions: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.partitions = partitions


class LogError(EverbellError):
    """The log of the cluster failed; see its subclasses."""

    slug = "log"
    title = "The log of the cluster failed"


class LogUnavailable(LogError):
    """The log is not available at the moment; a retry may help. The command was not appended."""

    status = 503
    slug = "log-unavailable"
    title = "The log of the cluster is not available"
    retry_after_s = 1


class LogUncertain(LogError):
    """The answer to an append was lost: the command may be in the log or may still appear. Repeating it is safe."""

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
    """A write or fsync of the local log failed, so the durable state is unknown. The process must end and restart."""


class LogCorrupt(LogError):
    """Stored bytes differ from those written. The log refuses to go on, so that nothing is dropped silently."""


class LogUnusable(LogError):
    """The log cannot be opened: a wrong URL, a wrong password, no permission, in use by another process."""


class Unreachable(EverbellError):
    """A client could not reach the server or got no answer. The outcome of the request is unknown."""

    status = 502
    slug = "unreachable"
    title = "The server cannot be reached"


class ClusterError(EverbellError):
    """The cluster cannot continue, or not with this node; see its subclasses."""

    slug = "cluster"
    title = "The cluster cannot go on with this node"


class UnknownCommand(ClusterError):
    """The log has an entry of a newer version, which this version does not understand. Upgrade this node."""


class UnknownSnapshot(ClusterError):
    """This version does not understand the cluster's snapshot. Upgrade this node."""


class BrokenInvariant(ClusterError):
    """The cluster's value violates an invariant: a bug. The node stops before it does harm. Please report it."""
