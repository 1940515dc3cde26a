"""The routes keep their declarations: conditions, problems, bodies, queries, examples, client calls, commands, docs.

The tests walk the route table, so a new route is tested without being named here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbell.api.application import RESOURCES, ROUTES, TAGS
from everbell.api.facade_list import FACADES
from everbell.api.openapi import PROBLEMS_OF_ALL, PROBLEMS_OF_KEYS
from everbell.api.route import Route
from everbell.client.all_calls import AllCalls
from everbell.client.call import Call
from everbell.client.operation import Method
from everbell.client.queue_calls import Failure
from everbell.core.cluster import Weighted
from tests.unit.api.api_caller import Answered
from tests.unit.api.keys_stage import KeysStage, NotHere, guarded

ROOT = Path(__file__).parents[3]
EVENTS = "/v1/tenants/shop/events"
EVENT = "order-17-timeout"
KEY = "order-17"
JSON = "application/json"
STALE = '"999"'

each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
each_body = pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.body is not None], ids=lambda route: route.name
)
each_event_route = pytest.mark.parametrize(
    "route", [route for route in ROUTES if "{id}" in route.path], ids=lambda route: route.name
)


def target_of(route: Route, event: str = EVENT) -> str:
    named = {
        "{tenant}": "shop",
        "{id}": event,
        "{queue}": "mail",
        "{key}": "3q9x7d",
        "{ordering_key}": KEY,
        "{file}": "app.js",
    }
    path = "/".join(named.get(segment, segment) for segment in route.path.split("/"))
    return path + {"cancel_events": "?tag=none", "resume": "?what=tenant", "lift": "?what=tenant"}.get(route.name, "")


def declared(route: Route) -> set[int]:
    """Every status that a route may answer. A port of the stage that is only there to be reached answers `NotHere`."""
    own = {response.status for response in route.responses}
    return own | route.all_problems | {*PROBLEMS_OF_ALL, *PROBLEMS_OF_KEYS, NotHere.status}


async def furnished(stage: KeysStage) -> None:
    """An event that repeats, an ordering key with a head, and a policy."""
    spec = {"to": "queue:mail", "repeat": {"every": "1d"}}
    for path, body in (
        (f"{EVENTS}/{EVENT}", {**spec, "at": "2036-01-01T00:00:00Z"}),
        (f"{EVENTS}/head", {"to": "queue:mail", "in": 0, "key": KEY}),
        ("/v1/tenants/shop", {"retention": "7d"}),
    ):
        answer = await stage.call("PUT", path, body)
        assert answer.status in (200, 201), answer.body


def asked(
    route: Route,
    body: Any = None,
    target: str | None = None,
    prepare: Callable[[KeysStage], Any] = furnished,
    **headers: str,
) -> Answered:
    """The answer to a request with the example of the route as its body, if it has one."""
    answers: list[Answered] = []
    content = route.example if body is None and route.body is not None else b"" if body is None else body

    async def test(stage: KeysStage) -> None:
        await prepare(stage)
        answers.append(await stage.call(route.method, target or target_of(route), content, **headers))

    guarded(test)
    return answers[0]


def test_a_server_that_has_everything_has_every_declared_route() -> None:
    async def test(stage: KeysStage) -> None:
        assert [(route.name, route.path) for route in stage.api.routes] == [
            (route.name, route.path) for route in ROUTES
        ]

    guarded(test)
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


@each_route
def test_a_route_is_described(route: Route) -> None:
    assert route.summary
    assert not route.summary.endswith(".")
    assert route.description.endswith("."), "the docstring of a handler is the description of its route"
    assert TAGS[route.tag]
    assert (route.example is not None) == (route.body is not None), "a route with a body has an example of it"


@each_body
def test_an_example_is_accepted(route: Route) -> None:
    msgspec.json.decode(msgspec.json.encode(route.example), type=route.body)
    answer = asked(route)
    assert answer.status not in (400, 413, 415, 422), answer.body
    assert answer.status in declared(route), answer.body


@each_route
def test_a_stale_version_is_refused_exactly_where_it_is_declared(route: Route) -> None:
    answer = asked(route, if_match=STALE)
    assert (answer.status == 412) == route.conditional, answer.body
    assert answer.status in declared(route), answer.body


@each_route
def test_a_malformed_version_is_refused_exactly_where_versions_are_declared(route: Route) -> None:
    answer = asked(route, if_match="not-an-etag")
    assert (answer.status == 400) == route.conditional, answer.body


@each_event_route
def test_an_absent_event_is_not_found_exactly_where_that_is_declared(route: Route) -> None:
    answer = asked(route, target=target_of(route, "absent"))
    assert (answer.status == 404) == (404 in route.all_problems), answer.body


@each_event_route
def test_a_finished_event_is_a_conflict_exactly_where_that_is_declared(route: Route) -> None:
    async def finished(stage: KeysStage) -> None:
        await furnished(stage)
        assert (await stage.call("DELETE", f"{EVENTS}/{EVENT}")).status == 200

    answer = asked(route, prepare=finished)
    assert (answer.status == 409) == (409 in route.all_problems), answer.body
    assert answer.status in declared(route), answer.body


@each_route
def test_a_body_is_read_exactly_where_it_is_declared(route: Route) -> None:
    answer = asked(route, b'"nonsense"')
    assert (answer.status in (400, 422)) == (route.body is not None), answer.body


@each_route
def test_a_query_is_read_exactly_where_it_is_declared(route: Route) -> None:
    target = target_of(route)
    answer = asked(route, target=f"{target}{'&' if '?' in target else '?'}nonsense=1")
    assert (answer.status == 422) == (route.query is not None), answer.body


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """A body that is like a valid one: parts are left out, doubled, or replaced by anything."""
    match draw(st.sampled_from(["keep", "keep", "keep", "replace"])):
        case "replace":
            return draw(JSONISH)
    if isinstance(value, dict):
        kept = {name: draw(mutated(inner)) for name, inner in value.items() if draw(st.integers(0, 4))}
        return kept | draw(st.dictionaries(st.sampled_from([*value, "extra"]), JSONISH, max_size=1))
    if isinstance(value, list):
        return [draw(mutated(inner)) for inner in value] * draw(st.integers(0, 3))
    return value


@each_body
@settings(max_examples=10)
@given(data=st.data())
def test_no_body_makes_the_server_fail(route: Route, data: st.DataObject) -> None:
    bodies = data.draw(st.lists(mutated(route.example) | JSONISH, min_size=1, max_size=8))

    async def test(stage: KeysStage) -> None:
        await furnished(stage)
        for body in bodies:
            # Not msgspec, which refuses integers beyond 64 bits and writes NaN as null.
            content = json.dumps(body).encode("utf-8", "surrogatepass")
            answer = await stage.call(route.method, target_of(route), _without_wait(content))
            assert answer.status < 500, (body, answer.body)
            assert answer.status in declared(route), (body, answer.body)

    guarded(test)


def _without_wait(content: bytes) -> bytes:
    """A long poll would take virtual minutes."""
    return content.replace(b'"wait"', b'"limit"')


SAMPLES: dict[str, Any] = {
    "id": "ev",
    "key": "k",
    "ids": ["ev"],
    "queue": "q",
    "leases": ["token"],
    "lease": "30s",
    "by": "10m",
    "failures": [Failure("token")],
    "node": "n1",
    "strategy": Weighted(),
    "document": {},
    "what": "tenant",
    "repeat": {"every": "1h"},
    "from_": "2026-01-01T00:00:00Z",
    "until": "2026-01-02T00:00:00Z",
}
"""Arguments that client methods require, by name."""
SPECIAL: dict[str, list[dict[str, Any]]] = {
    "forecast": [{}, {"all_tenants": True}],
    "history": [{}, {"all_tenants": True}],
    "reschedule_many": [{"events": [("ev", 1)]}],
    "schedule_batches": [{"events": [{"in": "1h"}]}],
    "schedule_many": [{"events": [{"in": "1h"}]}],
}


def client_methods() -> dict[str, Method[Any, Any, Any]]:
    members = {name: member for kind in AllCalls.__mro__ for name, member in vars(kind).items()}
    return {name: member for name, member in members.items() if isinstance(member, Method)}


class OneTenant(AllCalls):
    """The calls of a client, without the client."""

    def __init__(self) -> None:
        self.tenant = "shop"


def calls_of(name: str, method: Method[Any, Any, Any]) -> Iterator[Call[Any]]:
    parameters = list(method.signature.parameters.values())[1:]
    required = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    missing = [parameter for parameter in required if name not in SPECIAL and parameter not in SAMPLES]
    assert not missing, f"add a sample of {missing} of the client's method {name}"
    for arguments in SPECIAL.get(name) or [{parameter: SAMPLES[parameter] for parameter in required}]:
        made: Any = method.build(OneTenant(), **arguments)
        yield from [made] if isinstance(made, Call) else made


def route_of(call: Call[Any]) -> Route:
    path = call.path.partition("?")[0]
    found = [
        route
        for route in ROUTES
        if route.method == call.method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path)
    ]
    assert len(found) == 1, (call.method, path)
    return found[0]


METHODS_BY_ROUTE: dict[str, set[str]] = {}
for _name, _method in client_methods().items():
    for _call in calls_of(_name, _method):
        METHODS_BY_ROUTE.setdefault(route_of(_call).name, set()).add(_name)


def used_by_commands() -> set[str]:
    """The methods that the command line, and the worker that it starts, call on a client."""
    paths = [*(ROOT / "src/everbell/cli").glob("*.py"), *(ROOT / "src/everbell/client").glob("[pws]*er.py")]
    return {
        node.attr
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("client", "self._client", "self.client")
    }


@each_route
def test_a_route_has_a_client_call_or_a_reason(route: Route) -> None:
    assert (route.name in METHODS_BY_ROUTE) != bool(route.no_client), (
        f"add a function for {route.name} to a module of calls in everbell.client, or give its route no_client"
    )


@each_route
def test_a_route_has_a_command_or_a_reason(route: Route) -> None:
    used = METHODS_BY_ROUTE.get(route.name, set()) & used_by_commands()
    assert bool(used) != bool(route.no_command), (
        f"add a command that calls {route.name}, or give its route no_command; found {used}"
    )


@each_route
def test_a_route_has_a_place_in_the_hand_written_pages(route: Route) -> None:
    text = (ROOT / "docs/http-api.md").read_text()
    line = rf"^{route.method} +{re.escape(route.path)} +\S"
    assert re.search(line, text, re.MULTILINE), f"docs/http-api.md does not mention {route.method} {route.path}"


def test_every_resource_has_a_tag_of_its_own_description() -> None:
    assert {resource.tag for resource in (*RESOURCES, *FACADES.values())} == set(TAGS)
