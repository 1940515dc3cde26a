"""The requests about kills. `engine.requests` has the others."""

from __future__ import annotations

from collections.abc import Sequence

from everbell.core.kill import Kill, KillCount, KillKind, PutKilled
from everbell.engine.request_routes import ClusterRequest, EveryNode


class ListKills(ClusterRequest[list[Kill]], frozen=True):
    """All kills, of all tenants."""

    tag = "kills"


class PutKill(ClusterRequest[PutKilled], frozen=True):
    """End all events of a kill until it is lifted, or change its note. Raises `Conflict`, `LogError`."""

    tag = "put_kill"
    kill: Kill


class DropKill(ClusterRequest[Kill], frozen=True):
    """Lift a kill. Raises `NotFound`, `LogError`."""

    tag = "drop_kill"
    tenant: str
    what: KillKind
    name: str


class CountKilled(EveryNode[dict[str, KillCount]], frozen=True):
    """How many events each kill of a tenant has ended since its node started, by the place of the kill."""

    tag = "count_killed"
    tenant: str

    def merged(self, answers: Sequence[dict[str, KillCount]], unheard: Sequence[str]) -> dict[str, KillCount]:
        whole: dict[str, KillCount] = {}
        for answer in answers:
            for place, count in answer.items():
                whole[place] = count.plus(whole.get(place, KillCount()))
        return whole
