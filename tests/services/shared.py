"""One server of each kind for all tests of a pytest process, started by the first test that asks.

Each test gets a place of its own on the server (a schema, a path), and must not stop it. If a server cannot be started
here, the test that asked is skipped and says why. EVERBELL_REQUIRE_SERVICES=1, which continuous integration sets, makes
that a failure, so that no test is skipped unnoticed there.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest

from tests.services.cassandra import CassandraServer
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.services.process import ServerProcess, ServiceMissing
from tests.services.zookeeper import ZookeeperServer

H = TypeVar("H")
S = TypeVar("S", bound=ServerProcess)


def had(make: Callable[[], H]) -> H:
    """A new server, not started yet. If it is not installed, the test is skipped or fails."""
    try:
        return make()
    except ServiceMissing as missing:
        if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@cache
def postgres() -> PostgresServer:
    """The shared PostgreSQL."""
    return _started(had(PostgresServer))


@cache
def zookeeper() -> ZookeeperServer:
    """The shared ZooKeeper."""
    return _started(had(ZookeeperServer))


@cache
def kafka() -> KafkaServer:
    """The shared Kafka."""
    return _started(had(KafkaServer))


@cache
def fragile_kafka() -> KafkaServer:
    """Another Kafka, which a test may stop, kill and freeze; that test starts it again."""
    return _started(had(lambda: KafkaServer(session_ms=3_000)))


@cache
def cassandra() -> CassandraServer:
    """The shared Cassandra."""
    server = had(CassandraServer)
    server.has_tls = True
    return _started(server)


def _started(server: S) -> S:
    atexit.register(server.remove)
    server.start()
    return server
