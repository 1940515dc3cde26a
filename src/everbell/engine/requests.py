"""Every operation, as one value: with `engine.view_requests` the only list of them.

A request declares its fields, the type of its answer, and the nodes that answer it. The engine, the cluster's router, a
gateway's link and another node each have one method for all requests: `ask`.

The base class of a request is its route (`engine.request_routes`). The requests that look at queues, targets and the
recent past of all nodes are in `engine.view_requests`, for want of room here.

To add an operation, add its class here and handle it in the engine, the cluster or the node: `Handlers` refuses to be
made while one is missing (`core.request`), and mypy checks that a handler fits its request. The router needs an entry
only for a request that has no route class; the link needs none.

Other nodes may run the previous version. They send and expect the fields of a request as an array, in the order of the
class, and of exactly that length: so a request with `for_peers` never gains, loses or moves a field, and its tag stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from msgspec.structs import replace

from everbell.channels.queue import Lease
from everbell.core.access import AccessKey
from everbell.core.allotment import Allotment
from everbell.core.amendment import Amendment
from everbell.core.batch_item import BatchItem, ItemResult
from everbell.core.cluster import Command, Policy
from everbell.core.cluster.view import ClusterView
from everbell.core.collector_report import CollectorReport
from everbell.core.health import Health
from everbell.core.pause import Pause, Put, What
from everbell.core.process_report import ProcessReport
from everbell.core.reader_report import ReaderReport
from everbell.core.retry import Outcome
from everbell.core.simple_batch import SimpleBatch
from everbell.core.spec import Draft
from everbell.engine.forecast import Forecast
from everbell.engine.request_routes import (
    Anywhere,
    ByEventId,
    ByKey,
    ByToken,
    ClusterRequest,
    EachMatching,
    EngineRequest,
    NodeRequest,
)
from everbell.engine.seen import DraftResult, KeyLine, Seen
from everbell.stores.port import Counts, Filter, PreparedRows

# --- Events ---


class Schedule(EngineRequest[Sequence[DraftResult]], frozen=True):
    """Store new events, and answer for each in turn. Each draft goes to the owner of its key's or id's partition.

    A client-given id that is in use is no error when that event equals the draft: then this is a repeated request.
    Columns of simple events, and rows that a gateway prepared from them, are faster bodies of the same request. The
    answer to prepared rows is empty, for the gateway has their ids; `NotOwner` means that their places are no longer
    valid and nothing was stored, so the events have to come as drafts.
    """

    tag = "schedule"
    for_peers = True
    tenant: str
    body: Sequence[Draft] | SimpleBatch | PreparedRows


class Allot(EngineRequest[Allotment | None], frozen=True):
    """Reserve places for new simple events. None: the events must be sent as drafts."""

    tag = "allot"
    count: int


class ApplyItems(EngineRequest[Sequence[ItemResult]], frozen=True):
    """Create, replace and cancel events, and answer for each item in turn. All items of an id go to one owner.

    Items of one id take effect in order. After a failure that a retry may mend, later items of the id fail as well.
    """

    tag = "items"
    for_peers = True
    tenant: str
    items: Sequence[BatchItem]


class Get(ByEventId[Seen], frozen=True):
    """Raises `NotFound`. Any node knows the event; only the owner knows whether it is being delivered."""

    tag = "get"


class Find(Anywhere[tuple[list[Seen], str | None]], frozen=True):
    """One page, and the cursor of the next. Events that other nodes deliver are shown as scheduled or retrying."""

    tag = "find"
    filter: Filter
    cursor: str | None
    limit: int


class CountEvents(Anywhere[Mapping[str, Counts]], frozen=True):
    """The number of events of each tenant."""

    tag = "counts"


class Replace(ByEventId[Seen], frozen=True):
    """Create the event, or put the draft in its place. Raises `Conflict` when it ended, `VersionMismatch`."""

    tag = "replace"
    draft: Draft
    version: int | None

    @property
    def new_name(self) -> str:
        return self.id if self.draft.key is None else self.draft.key


class Amend(ByEventId[Seen], frozen=True):
    """Change parts of an event. Raises `NotFound`, `Conflict`, `VersionMismatch`."""

    tag = "change"
    amendment: Amendment
    version: int | None


class Cancel(ByEventId[Seen], frozen=True):
    """Cancel one event. No attempt starts after the answer.

    Raises `NotFound`, `Conflict` when it ended already, `VersionMismatch`.
    """

    tag = "cancel"
    version: int | None = None


class CancelMatching(EachMatching, frozen=True):
    """Cancel all events that match."""

    tag = "cancel_matching"


class Ring(ByEventId[Seen], frozen=True):
    """Make the event due now. Raises `NotFound`, `Conflict`."""

    tag = "ring"


class Redrive(ByEventId[Seen], frozen=True):
    """Give a dead event a new set of attempts. Raises `NotFound`, `Conflict` when it is not dead."""

    tag = "redrive"
    delay_ms: int = 0


class RedriveMatching(EachMatching, frozen=True):
    """Redrive all dead events that match, together or `per_s` of them a second."""

    tag = "redrive_matching"
    per_s: float | None = None


class GetLine(ByKey[KeyLine], frozen=True):
    """The first event of a key, and the number of events that wait. Only the owner of the key knows."""

    tag = "line"


class GetForecast(Anywhere[Forecast], frozen=True):
    """The number of events due in each span of time, of one tenant or of all, and the number of overdue events."""

    tag = "forecast"
    tenant: str | None
    per_ms: int
    count: int


class TryOut(Anywhere[Outcome], frozen=True):
    """Make one attempt that changes nothing. Raises `NotFound`, `Conflict`."""

    tag = "try_out"
    tenant: str
    id: str


# --- Queues, for workers ---


class LeaseEvents(EngineRequest[list[Lease]], frozen=True):
    """Up to `limit` due events, waiting up to `wait_ms` for the first. All nodes are asked; one answers."""

    tag = "lease"
    for_peers = True
    tenant: str
    queue: str
    limit: int
    wait_ms: int
    lease_ms: int | None


class _OfTokens(ByToken, frozen=True):
    tokens: Sequence[str]

    def tokens_asked(self) -> Sequence[str]:
        return self.tokens

    def only(self, tokens: Sequence[str]) -> Self:
        return replace(self, tokens=tokens)


class Acknowledge(_OfTokens, frozen=True):
    """The events are done. The answer is sent when that is durable."""

    tag = "acknowledge"


class FailLeases(ByToken, frozen=True):
    """The attempts failed: by their policy, the events are retried or are dead."""

    tag = "fail"
    failures: Mapping[str, Outcome]

    def tokens_asked(self) -> Sequence[str]:
        return list(self.failures)

    def only(self, tokens: Sequence[str]) -> Self:
        return replace(self, failures={token: self.failures[token] for token in tokens})


class GiveBack(_OfTokens, frozen=True):
    """The events were not attempted: another worker may lease them immediately, and no attempt is counted."""

    tag = "give_back"


class ExtendLeases(_OfTokens, frozen=True):
    """Hold the events for `lease_ms` more, from now."""

    tag = "extend"
    lease_ms: int


# --- The cluster ---


class LookAtCluster(ClusterRequest[ClusterView], frozen=True):
    """The cluster as this node sees it."""

    tag = "look"


class OrderCluster(ClusterRequest[ClusterView], frozen=True):
    """Append a command to the log, and wait until this node has played it. Raises `LogError`."""

    tag = "order"
    command: Command


class Played(ClusterRequest[bool], frozen=True):
    """Whether this node has played the log up to the index; it waits some seconds for that."""

    tag = "played"
    for_peers = True
    index: int


class ListPauses(ClusterRequest[list[Pause]], frozen=True):
    """All pauses, of all tenants."""

    tag = "pauses"


class PutPause(ClusterRequest[Put], frozen=True):
    """Pause something, or change the note or the end of a pause. Raises `LogError`."""

    tag = "put_pause"
    pause: Pause


class DropPause(ClusterRequest[Pause], frozen=True):
    """End a pause. Raises `NotFound`, `LogError`."""

    tag = "drop_pause"
    tenant: str
    what: What
    name: str


# --- This process ---


class MakeBackup(NodeRequest[str], frozen=True):
    """Copy the store while the node runs. The answer is the path of the copy."""

    tag = "backup"


class GetMetrics(NodeRequest[str], frozen=True):
    tag = "metrics"


class GetHealth(NodeRequest[Health], frozen=True):
    tag = "health"


class FollowKeys(NodeRequest[tuple[int, tuple[AccessKey, ...]]], frozen=True):
    """The access keys with their version. Answered when the version is not the known one, or after some seconds."""

    tag = "keys"
    known: int


class PutKey(NodeRequest[None], frozen=True):
    """Raises `LogError`."""

    tag = "put_key"
    key: AccessKey


class RevokeKey(NodeRequest[AccessKey], frozen=True):
    """Raises `NotFound`, `LogError`."""

    tag = "revoke_key"
    id: str
    revoked_at: int


class DropKey(NodeRequest[None], frozen=True):
    """Raises `LogError`."""

    tag = "drop_key"
    id: str


class FollowPolicies(NodeRequest[tuple[int, Mapping[str, Policy]]], frozen=True):
    """The policies with their version. Answered when the version is not the known one, or after some seconds."""

    tag = "policies"
    known: int


class PutTenantPolicy(NodeRequest[int], frozen=True):
    """Write a document. The answer is its version. Raises `VersionMismatch`, `LogError`."""

    tag = "put_policy"
    tenant: str
    document: bytes
    expected: int | None


class DropTenantPolicy(NodeRequest[None], frozen=True):
    """Delete a document. Raises `VersionMismatch`, `LogError`."""

    tag = "drop_policy"
    tenant: str
    expected: int | None


class UntilStopping(NodeRequest[None], frozen=True):
    """Answered when the node begins to stop."""

    tag = "until_stopping"


class ReportReading(NodeRequest[None], frozen=True):
    """A gateway reports the records that it has read from Kafka since its last report."""

    tag = "kafka_news"
    gateway: int
    report: ReaderReport


class ReportCollecting(NodeRequest[None], frozen=True):
    """A gateway reports the rows of an outbox that it has collected since its last report."""

    tag = "outbox_report"
    outbox: int
    report: CollectorReport


class ReportProcess(NodeRequest[None], frozen=True):
    """A gateway reports its own counts."""

    tag = "process_report"
    gateway: int
    report: ProcessReport


class CountTags(NodeRequest[None], frozen=True):
    """Count tags that a client of a facade gave to its events, for the metrics."""

    tag = "count_tags"
    tags: Mapping[str, int]
