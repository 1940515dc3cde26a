"""The server obeys its own OpenAPI document: requests are generated from the document, answers are compared with it.

Both fitting and unfitting requests are sent, to a real server over loopback with an engine in memory.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everbell.api.access_keys import KeysApi
from everbell.api.application import Api
from everbell.clock import SystemClock
from everbell.core.health import Health
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy, SystemEntropy
from everbell.http.problem import server_problem
from everbell.http.server import HttpServer, ServerLimits
from everbell.stores.memory.store import MemoryStore
from tests.unit.api.keys_stage import MemoryKeys

EXAMPLES_PERCENT = 30
"""A percentage of the usual number of examples: each example is a request."""
WAIT_S_MAX = 0.01


def unfitting_is_refused(context: CheckContext, response: Response, case: Case[Any]) -> bool | None:
    """The server refuses a request that does not fit; of a batch, only the events that do not fit.

    A batch can have a bad event beside good ones. The answer to it is 207, and it has to name the refused events.
    """
    is_batch = case.operation.definition.raw["operationId"] == "schedule_batch"
    if is_batch and response.status_code == 207 and case.meta and case.meta.is_negative_at(ParameterLocation.BODY):
        answer = response.json()
        refused = [error["index"] for error in answer["errors"]]
        assert refused, answer
        assert all(400 <= error["status"] < 500 for error in answer["errors"]), answer
        assert refused == [place for place, id in enumerate(answer["ids"]) if id is None], answer
        assert (answer["accepted"], answer["rejected"]) == (len(answer["ids"]) - len(refused), len(refused)), answer
        return None
    return negative_data_rejection(context, response, case)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unfitting_is_refused,
]

DOCUMENT = Api(
    cast(Any, None),
    Tenants(),
    SystemClock(),
    lambda: Health("ready"),
    str,
    keys=KeysApi(MemoryKeys(), SystemClock(), SystemEntropy()),
).document
# Any 4xx is a refusal: also those for bodies that are too long or too large.
CONFIG = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}})
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
MODES = {"fitting": GenerationMode.POSITIVE, "unfitting": GenerationMode.NEGATIVE}
OPERATIONS = [
    pytest.param(path, method, mode, id=f"{operation['operationId']}-{name}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for name, mode in MODES.items()
    if mode is GenerationMode.POSITIVE or "parameters" in operation  # Without parameters there is no unfitting request.
]


class Server:
    """An Everbell server in a thread of its own."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        clock = SystemClock()
        # A default target, so that most generated events can be scheduled.
        tenants = Tenants(Tenant(to="queue:work"))
        engine = await Engine.start(MemoryStore(8), {}, tenants, clock, SeededEntropy(1))
        # The authorizer does not know the keys that the tests create, or it would soon refuse all requests.
        keys = KeysApi(MemoryKeys(), clock, SystemEntropy())
        health, metrics = lambda: Health("ready"), lambda: "up 1\n"
        api = Api(engine.ask, tenants, clock, health, metrics, keys=keys)
        server = HttpServer(api, limits=ServerLimits(), on_problem=server_problem)
        await server.start(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.port}"
        self._ready.set()
        await self._end.wait()
        await server.stop(0)
        await engine.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_an_operation_obeys_its_documentation(
    server: Server, session: requests.Session, path: str, method: str, mode: GenerationMode
) -> None:
    operation = SCHEMA[path][method.upper()]

    @settings(max_examples=settings().max_examples * EXAMPLES_PERCENT // 100, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(mode))
    def run(case: Any) -> None:
        _do_not_wait(case)
        case.call_and_validate(server.url, session=session, checks=CHECKS)

    run()


@pytest.mark.parametrize("good", [0, 1, 2])
def test_a_batch_with_a_bad_event_is_judged_by_its_refused_events(
    server: Server, session: requests.Session, good: int
) -> None:
    """Written by hand, because a generated batch has a bad event beside good ones only by chance."""
    path = "/v1/tenants/{tenant}/events/batch"
    operation = SCHEMA[path]["POST"]
    batch = [*[{"in": 60, "payload": number} for number in range(good)], {"in": 60, "key": 17}]
    seen = []

    @settings(max_examples=1, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(GenerationMode.NEGATIVE))
    def run(case: Any) -> None:
        case.path_parameters, case.query, case.headers = {"tenant": "shop"}, {}, {}
        case.body, case.media_type = batch, "application/json"
        seen.append(case.call_and_validate(server.url, session=session, checks=CHECKS).status_code)

    run()

    assert seen == [207 if good else 422]


def test_the_server_returns_the_openapi_document(server: Server, session: requests.Session) -> None:
    assert session.get(f"{server.url}/openapi.json", timeout=10).json() == json.loads(json.dumps(DOCUMENT))


def _do_not_wait(case: Any) -> None:
    """Shorten the wait: a long poll would make the test slow."""
    if isinstance(case.body, dict) and type(case.body.get("wait")) in (int, float):
        case.body["wait"] = min(case.body["wait"], WAIT_S_MAX)
