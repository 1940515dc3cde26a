"""The server does what its own OpenAPI document says: requests are made up from the document, answers are held against
it.

Requests that fit the document and requests that do not are both sent, to a real server over loopback with an engine
in memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everbell.clock import SystemClock
from everbell.core.health import Health
from everbell.core.tenant import Tenant, Tenants
from everbell.engine.engine import Engine
from everbell.entropy import SeededEntropy, SystemEntropy
from everbell.server.api import Api
from everbell.server.http import HttpServer, ServerLimits
from everbell.server.keys_api import KeysApi
from everbell.server.problem import server_problem
from everbell.stores.memory import MemoryStore
from tests.unit.server.keys_stage import MemoryKeys

EXAMPLES = 30
WAIT_S_MAX = 0.01

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

DOCUMENT = Api(
    cast(Any, None),
    cast(Any, None),
    Tenants(),
    SystemClock(),
    lambda: Health("ready"),
    str,
    keys=KeysApi(MemoryKeys(), SystemClock(), SystemEntropy()),
).document
# Whatever is refused is refused: also for being too long, or too large.
CONFIG = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": ["4xx"]}}})
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
MODES = {"fitting": GenerationMode.POSITIVE, "unfitting": GenerationMode.NEGATIVE}
OPERATIONS = [
    pytest.param(path, method, mode, id=f"{operation['operationId']}-{name}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for name, mode in MODES.items()
    if mode is GenerationMode.POSITIVE or "parameters" in operation  # Without any, nothing could be wrong.
]


class Server:
    """An everbell in a thread of its own."""

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
        # A target of its own, so that most events that are made up can be scheduled.
        tenants = Tenants(Tenant(to="queue:work"))
        engine = await Engine.start(MemoryStore(8), {}, tenants, clock, SeededEntropy(1))
        # The gate does not know the keys that are made here, or it would soon let nobody in.
        keys = KeysApi(MemoryKeys(), clock, SystemEntropy())
        health, metrics = lambda: Health("ready"), lambda: "up 1\n"
        api = Api(engine.operations, engine.leases, tenants, clock, health, metrics, keys=keys)
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
def test_an_operation_is_as_documented(
    server: Server, session: requests.Session, path: str, method: str, mode: GenerationMode
) -> None:
    operation = SCHEMA[path][method.upper()]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(mode))
    def run(case: Any) -> None:
        _do_not_wait(case)
        case.call_and_validate(server.url, session=session, checks=CHECKS)

    run()


def test_the_document_is_served_as_it_is(server: Server, session: requests.Session) -> None:
    assert session.get(f"{server.url}/openapi.json", timeout=10).json() == DOCUMENT


def _do_not_wait(case: Any) -> None:
    """A long poll would make the test long."""
    if isinstance(case.body, dict) and type(case.body.get("wait")) in (int, float):
        case.body["wait"] = min(case.body["wait"], WAIT_S_MAX)
