"""What operators set at one node of a cluster holds at all: access keys and policies, on real processes and logs.

It counts at the node that was asked when the answer is there; at the others as soon as they have read the entry of the
log, so those are asked until they know. Whoever starts later has read it before it answers anybody.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Answer, Machine, until
from tests.services import shared

EVENTS = "/v1/tenants/shop/events"
LEASE = "/v1/tenants/shop/queues/work/lease"
NAMES = "n1", "n2", "n3"


class Guarded(Fleet):
    """Nodes that ask for a key."""

    def __init__(self, folder: Path, store: str, log: str) -> None:
        self._key_file = folder / "first-key"
        super().__init__(folder, store, "--lease", "1s", "--bootstrap-key", str(self._key_file), log=log)

    def ask(self, name: str, method: str, path: str, key: str = "", body: object = None, **headers: str) -> Answer:
        """As an operator, unless another key is given."""
        key = key or self._key_file.read_text().strip()
        sent = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.nodes[name].call(method, path, body, sent)

    def statuses(self, method: str, path: str, key: str, body: object = None) -> list[int]:
        """How every node answers the same."""
        return [self.ask(name, method, path, key, body).status for name in NAMES]


@pytest.fixture(params=["postgresql", "zookeeper"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    log = shared.zookeeper().fresh_path() if request.param == "zookeeper" else ""
    with Guarded(tmp_path, shared.postgres().fresh_schema(), log) as fleet:
        fleet.add("n1")  # It makes the first key.
        fleet.grow("n2", "n3")
        yield fleet


def test_a_key_that_is_revoked_at_one_node_is_refused_by_all(guarded: Guarded) -> None:
    made = guarded.ask("n1", "POST", "/v1/keys", body={"tenant": "shop", "scopes": ["schedule", "read", "work"]})
    assert made.status == 201, made
    key, key_id = made.json["key"], made.json["id"]
    assert guarded.ask("n1", "GET", EVENTS, key).status == 200
    until(lambda: guarded.statuses("GET", EVENTS, key) == [200, 200, 200], "all know the key")

    polled: list[Answer] = []
    worker = threading.Thread(
        target=lambda: polled.append(guarded.ask("n3", "POST", LEASE, key, {"limit": 10, "wait": "30s"}))
    )
    worker.start()
    guarded.nodes["n3"].signal(signal.SIGSTOP)  # It cannot hear of it for a while.
    try:
        assert guarded.ask("n2", "DELETE", f"/v1/keys/{key_id}").status == 200
        assert guarded.ask("n2", "GET", EVENTS, key).status == 401
        until(lambda: guarded.ask("n1", "GET", EVENTS, key).status == 401, "the neighbour refuses it")
    finally:
        guarded.nodes["n3"].signal(signal.SIGCONT)
    until(lambda: guarded.statuses("GET", EVENTS, key) == [401, 401, 401], "all refuse it")
    scheduled = guarded.ask("n1", "POST", EVENTS, body={"to": "queue:work", "payload": 1, "in": 0})
    assert scheduled.status == 201
    worker.join(60)
    assert [answer.json.get("events", []) for answer in polled] == [[]], "a poll that was waiting gets nothing any more"

    guarded.nodes["n1"].kill()
    guarded.nodes["n1"].start()
    assert guarded.ask("n1", "GET", EVENTS, key).status == 401, "who starts knows it before it answers"


def test_a_policy_that_is_set_at_one_node_holds_at_all(guarded: Guarded) -> None:
    spec = {"to": "queue:other", "payload": "x" * 200, "in": "1h"}
    operator = ""
    assert guarded.statuses("POST", EVENTS, operator, spec) == [201, 201, 201]
    policy = {"limits": {"payload": 100}}
    put = guarded.ask("n1", "PUT", "/v1/tenants/shop", body=policy)
    assert put.status == 200, put
    assert guarded.ask("n1", "POST", EVENTS, body=spec).status == 413
    until(lambda: guarded.statuses("POST", EVENTS, operator, spec) == [413, 413, 413], "all hold to it")
    tags = {guarded.ask(name, "GET", "/v1/tenants/shop").headers["etag"] for name in NAMES}
    assert len(tags) == 1, "all know it as the same version"

    looser = guarded.ask("n2", "PUT", "/v1/tenants/shop", body={"limits": {"payload": 1_000}}, if_match=tags.pop())
    assert looser.status == 200, looser
    assert guarded.ask("n2", "POST", EVENTS, body=spec).status == 201
    until(lambda: guarded.statuses("POST", EVENTS, operator, spec) == [201, 201, 201], "all hold to the newer one")
    stale = guarded.ask("n3", "PUT", "/v1/tenants/shop", body=policy, if_match=put.headers["etag"])
    assert stale.status == 412, "the older version is no longer there to be changed, at any node"
    _restart(guarded.nodes["n3"])
    assert guarded.ask("n3", "POST", EVENTS, body=spec).status == 201


def _restart(machine: Machine) -> None:
    assert machine.stop() == 0
    machine.start()
