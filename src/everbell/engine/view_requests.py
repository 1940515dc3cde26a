"""The requests that only look: queues, targets, the recent past, explanations. `engine.requests` has the others."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.core.queue_view import QueuesView, WorkerInfo, merged_queues
from everbell.core.target_view import TargetsView, merged_targets
from everbell.engine.history import Past, PastSpan, merged_past
from everbell.engine.request_routes import Anywhere, ByEventId, EveryNode
from everbell.engine.seen import Explained


class NoteWorker(Anywhere[None], frozen=True):
    """A worker that tells its name calls this node about a queue."""

    tag = "note_worker"
    tenant: str
    queue: str
    worker: WorkerInfo


class GetQueues(EveryNode[QueuesView], frozen=True):
    """The queues of a tenant, and their workers."""

    tag = "queues"
    tenant: str

    def merged(self, answers: Sequence[QueuesView], unheard: Sequence[str]) -> QueuesView:
        return merged_queues(answers, unheard)


class GetTargets(EveryNode[TargetsView], frozen=True):
    """The targets that a tenant sends events to."""

    tag = "targets"
    tenant: str

    def merged(self, answers: Sequence[TargetsView], unheard: Sequence[str]) -> TargetsView:
        return merged_targets(answers, unheard)


class GetPast(EveryNode[Past], frozen=True):
    """The counts of the last minutes or hours, of one tenant or of all."""

    tag = "past"
    tenant: str | None
    span: PastSpan

    def merged(self, answers: Sequence[Past], unheard: Sequence[str]) -> Past:
        return merged_past(answers, unheard)


class Explain(ByEventId[Explained], frozen=True):
    """The event, and why it has not been delivered yet. Only the owner knows. Raises `NotFound`."""

    tag = "explain"
