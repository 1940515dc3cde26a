"""Every request is declared once, and nothing can be forgotten: this walks all of them."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from everbell.cluster.cluster import Cluster
from everbell.cluster.router import Router
from everbell.core.request import Handlers, Request, answer_type, requests_of
from everbell.engine.replica_requests import ReplicaRequest
from everbell.engine.request_routes import Anywhere, ByEventId, ClusterRequest, EngineRequest, NodeRequest
from everbell.engine.requests import Cancel, CountEvents, Get, Schedule
from everbell.engine.seen import Seen
from everbell.links.wire import CODECS
from everbell.node.answers import NodeAnswers
from tests.unit.engine.stage import Stage, play

ALL = list(requests_of(Request))
LEVELS = (EngineRequest, ClusterRequest, NodeRequest, ReplicaRequest)
NOTHING = cast(Any, None)

each_request = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.tag)


def handled(handlers: Handlers) -> set[type]:
    return set(handlers._handles)


@each_request
def test_a_request_has_a_tag_of_its_own_and_one_level(kind: type[Request[Any]]) -> None:
    assert re.fullmatch(r"[a-z_]+", kind.tag)
    assert [other for other in ALL if other.tag == kind.tag] == [kind]
    assert sum(issubclass(kind, level) for level in LEVELS) == 1
    assert kind.__struct_config__.frozen
    assert kind.__struct_config__.array_like


@each_request
def test_a_request_and_its_answer_can_be_sent(kind: type[Request[Any]]) -> None:
    assert CODECS[kind.tag].kind is kind
    assert answer_type(kind) is not None


@each_request
def test_requests_of_peers_are_answered_by_an_engine_or_about_the_log(kind: type[Request[Any]]) -> None:
    """An engine never passes a request on, so requests cannot go round in circles."""
    if kind.for_peers:
        assert issubclass(kind, (EngineRequest, ReplicaRequest)) or kind.tag == "played"
        assert not issubclass(kind, Anywhere), "this node answers by itself"
    elif issubclass(kind, ByEventId):
        pytest.fail(f"the owner of the event is another node, and it would refuse {kind.__name__}: set for_peers")


def test_engine_router_cluster_and_node_answer_all_requests_of_their_level() -> None:
    async def scene(stage: Stage) -> None:
        node = NOTHING
        router = Router(node, stage.engine, NOTHING, stage.clock)
        cluster = Cluster(NOTHING, stage.engine, stage.clock, node, NOTHING, NOTHING, NOTHING, None, router, None)
        answers = NodeAnswers(cluster.ask, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, None)

        assert handled(stage.engine._handlers) == set(requests_of(EngineRequest))
        assert handled(router._handlers) == set(requests_of(EngineRequest))
        assert handled(cluster._handlers) == set(requests_of(ClusterRequest))
        assert handled(answers.handlers) == set(requests_of(NodeRequest))

    play(scene)


def test_handlers_that_lack_a_request_cannot_be_made() -> None:
    async def get(request: Get) -> Seen:
        raise NotImplementedError

    with pytest.raises(AssertionError, match=r"no handler answers .*Cancel"):
        Handlers(Get.by(get), complete=ByEventId)
    with pytest.raises(AssertionError, match="two handlers"):
        Handlers(Get.by(get), Get.by(get))
    with pytest.raises(AssertionError, match="Cancel is not for this part"):
        Handlers(Get.by(get)).ask(Cancel("shop", "x"))


def test_a_handler_of_a_route_answers_requests_without_their_own_handler() -> None:
    async def get(request: Get) -> str:
        return "get"

    async def others(request: ByEventId[Any]) -> str:
        return request.tag

    handlers = Handlers(cast(Any, Get).by(get), ByEventId.by(others))
    assert handled(handlers) == set(requests_of(ByEventId))
    ask = cast(Any, handlers.ask)
    assert [drive(ask(kind("shop", "x"))) for kind in (Get, Cancel)] == ["get", "cancel"]


def drive(answer: Any) -> Any:
    """The answer of a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as done:
        answer.send(None)
    return done.value.value


def test_the_type_of_an_answer_is_read_from_the_declaration() -> None:
    assert answer_type(Cancel) is Seen
    assert str(answer_type(CountEvents)).endswith("Mapping[str, everbell.stores.port.Counts]")
    assert "Sequence" in str(answer_type(Schedule))
