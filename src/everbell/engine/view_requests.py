"""The requests that only look: queues, targets, the recent past, explanations. `engine.requests` has the others."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.core.queue_view import QueuesView, WorkerInfo, merged_queues
from everbell.core.target_view import TargetsView, merged_targets
from everbell.engine.history import Past, PastSpan, merged_past
from everbell.engine.request_routes import Anywhere, ByEventId, EveryNode
from everbell.engine.seen import Explained, KeyLines


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


class GetBlockedKeys(EveryNode[KeyLines], frozen=True):
    """The keys of a tenant that are blocked by their head, up to `limit` of them."""

    tag = "blocked_keys"
    tenant: str
    limit: int

    def merged(self, answers: Sequence[KeyLines], unheard: Sequence[str]) -> KeyLines:
        # During a hand-over, two nodes may name the same key.
        lines = {key: line for answer in answers for key, line in answer.lines}
        is_more = len(lines) > self.limit or any(answer.is_more for answer in answers)
        return KeyLines(tuple((key, lines[key]) for key in sorted(lines)[: self.limit]), is_more, tuple(unheard))


class Explain(ByEventId[Explained], frozen=True):
    """The event, and why it has not been delivered yet. Only the owner knows. Raises `NotFound`."""

    tag = "explain"
