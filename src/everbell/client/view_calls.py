"""The calls that look at all nodes: queues and their workers, targets, the recent past."""

from __future__ import annotations

from typing import Literal

from everbell.client.call import Call, decoded
from everbell.client.operation import Calls, operation
from everbell.client.paths import tenant_path
from everbell.client.queries import with_query
from everbell.core.history_view import HistoryView
from everbell.core.queue_view import QueuesView
from everbell.core.target_view import TargetsView


class ViewCalls(Calls):
    """Operations that only look."""

    @operation
    def queues(self) -> Call[QueuesView]:
        """The queues of this client's tenant, and their workers."""
        return Call("GET", f"{tenant_path(self.tenant)}/queues", _queues, repeatable=True)

    @operation
    def targets(self) -> Call[TargetsView]:
        """The targets of this client's tenant: their load, latency, breakers, rates, pauses and last errors."""
        return Call("GET", f"{tenant_path(self.tenant)}/targets", _targets, repeatable=True)

    @operation
    def history(self, *, span: Literal["minutes", "hours"] = "minutes", all_tenants: bool = False) -> Call[HistoryView]:
        """What happened in the last 15 minutes or 24 hours, and how things stand now."""
        path = "/v1/history" if all_tenants else f"{tenant_path(self.tenant)}/history"
        return Call("GET", with_query(path, {"span": span}), _history, repeatable=True)


_queues = decoded(QueuesView)
_targets = decoded(TargetsView)
_history = decoded(HistoryView)
