"""The routes of requests: which node answers.

The base class of a request is its route. It declares the fields that the router needs to find the node that answers:

| base class     | which node answers                                                         |
|----------------|----------------------------------------------------------------------------|
| `ByEventId`    | the owner of the event's partition                                         |
| `ByKey`        | the owner of the key's partition                                           |
| `ByToken`      | for each token the owner of the partition that the token names             |
| `Anywhere`     | the node that is asked: its store has the answer                           |
| `EveryNode`    | all nodes, each about itself; the node that is asked merges the answers    |
| `EachMatching` | the node that is asked searches, and asks the owner of each event it finds |
| `EngineRequest` | as its own docstring says                                                  |
| `ClusterRequest`, `NodeRequest` | the node that is asked: these are never passed on         |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from everbell.core.request import Request
from everbell.stores.port import Filter

A_co = TypeVar("A_co", covariant=True)


class EngineRequest(Request[A_co], frozen=True):
    """An engine answers it: of this node, or of the node that the route leads to."""


class ClusterRequest(Request[A_co], frozen=True):
    """About the cluster, as this node sees it."""


class NodeRequest(Request[A_co], frozen=True):
    """About this process. Only its own gateways ask."""


class ByEventId(EngineRequest[A_co], frozen=True):
    for_peers = True
    tenant: str
    id: str

    @property
    def new_name(self) -> str | None:
        """Where the event does not exist: the key or id that places it, if this request may create it."""
        return None


class ByKey(EngineRequest[A_co], frozen=True):
    for_peers = True
    tenant: str
    key: str


class ByToken(EngineRequest[list[str]], frozen=True):
    """About leases. The answer lists the tokens whose leases had ended."""

    for_peers = True
    tenant: str
    queue: str

    def tokens_asked(self) -> Sequence[str]:
        raise NotImplementedError

    def only(self, tokens: Sequence[str]) -> Self:
        """The same request about some of the tokens."""
        raise NotImplementedError


class Anywhere(EngineRequest[A_co], frozen=True):
    pass


class EveryNode(EngineRequest[A_co], frozen=True):
    for_peers = True

    def merged(self, answers: Sequence[Any], unheard: Sequence[str]) -> A_co:
        """The answer for all nodes, from the answers of those that could be asked, and the names of the others."""
        raise NotImplementedError


class EachMatching(EngineRequest[int], frozen=True):
    """Answered by the number of events it was done to. Events that ended in the meantime do not count."""

    filter: Filter
