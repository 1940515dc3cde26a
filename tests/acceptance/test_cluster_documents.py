"""Access keys and policies that an operator sets at one node of a cluster apply on all nodes, on real processes and
logs.

They apply on the node that was asked when it answers. They apply on the other nodes as soon as those have read the log
entry, so the tests ask these until they know. A node that starts later has read the entry before it answers requests.
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
    """Nodes that require an access key."""

    def __init__(self, folder: Path, store: str, log: str) -> None:
        self._key_file = folder / "first-key"
        super().__init__(folder, store, "--lease", "1s", "--bootstrap-key", str(self._key_file), log=log)

    def ask(self, name: str, method: str, path: str, key: str = "", body: object = None, **headers: str) -> Answer:
        """Send a request with the operator's key, unless another key is given."""
        key = key or self._key_file.read_text().strip()
        sent = {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.nodes[name].call(method, path, body, sent)

    def statuses(self, method: str, path: str, key: str, body: object = None) -> list[int]:
        """The status of every node's answer to the same request."""
        return [self.ask(name, method, path, key, body).status for name in NAMES]


@pytest.fixture(params=["postgresql", "zookeeper"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guarded]:
    log = shared.zookeeper().fresh_path() if request.param == "zookeeper" else ""
    with Guarded(tmp_path, shared.postgres().fresh_schema(), log) as fleet:
        fleet.add("n1")  # It creates the first key.
        fleet.grow("n2", "n3")
        yield fleet


def test_a_key_revoked_at_one_node_is_refused_by_all_nodes(guarded: Guarded) -> None:
    made = guarded.ask("n1", "POST", "/v1/keys", body={"tenant": "shop", "scopes": ["schedule", "read", "work"]})
    assert made.status == 201, made
    key, key_id = made.json["key"], made.json["id"]
    assert guarded.ask("n1", "GET", EVENTS, key).status == 200
    until(lambda: guarded.statuses("GET", EVENTS, key) == [200, 200, 200], "all nodes know the key")

    polled: list[Answer] = []
    worker = threading.Thread(
        target=lambda: polled.append(guarded.ask("n3", "POST", LEASE, key, {"limit": 10, "wait": "30s"}))
    )
    worker.start()
    guarded.nodes["n3"].signal(signal.SIGSTOP)  # It cannot read the log for a while.
    try:
        assert guarded.ask("n2", "DELETE", f"/v1/keys/{key_id}").status == 200
        assert guarded.ask("n2", "GET", EVENTS, key).status == 401
        until(lambda: guarded.ask("n1", "GET", EVENTS, key).status == 401, "another node refuses the key")
    finally:
        guarded.nodes["n3"].signal(signal.SIGCONT)
    until(lambda: guarded.statuses("GET", EVENTS, key) == [401, 401, 401], "all nodes refuse the key")
    scheduled = guarded.ask("n1", "POST", EVENTS, body={"to": "queue:work", "payload": 1, "in": 0})
    assert scheduled.status == 201
    worker.join(60)
    assert [answer.json.get("events", []) for answer in polled] == [[]], (
        "a waiting poll with the revoked key got events"
    )

    guarded.nodes["n1"].kill()
    guarded.nodes["n1"].start()
    assert guarded.ask("n1", "GET", EVENTS, key).status == 401, "a node answered before it knew of the revocation"


def test_a_policy_set_at_one_node_applies_on_all_nodes(guarded: Guarded) -> None:
    spec = {"to": "queue:other", "payload": "x" * 200, "in": "1h"}
    operator = ""
    assert guarded.statuses("POST", EVENTS, operator, spec) == [201, 201, 201]
    policy = {"limits": {"payload": 100}}
    put = guarded.ask("n1", "PUT", "/v1/tenants/shop", body=policy)
    assert put.status == 200, put
    assert guarded.ask("n1", "POST", EVENTS, body=spec).status == 413
    until(lambda: guarded.statuses("POST", EVENTS, operator, spec) == [413, 413, 413], "all nodes apply the policy")
    tags = {guarded.ask(name, "GET", "/v1/tenants/shop").headers["etag"] for name in NAMES}
    assert len(tags) == 1, "nodes disagree about the version of the policy"

    looser = guarded.ask("n2", "PUT", "/v1/tenants/shop", body={"limits": {"payload": 1_000}}, if_match=tags.pop())
    assert looser.status == 200, looser
    assert guarded.ask("n2", "POST", EVENTS, body=spec).status == 201
    until(
        lambda: guarded.statuses("POST", EVENTS, operator, spec) == [201, 201, 201], "all nodes apply the newer policy"
    )
    stale = guarded.ask("n3", "PUT", "/v1/tenants/shop", body=policy, if_match=put.headers["etag"])
    assert stale.status == 412, "a node changed an outdated version of the policy"
    _restart(guarded.nodes["n3"])
    assert guarded.ask("n3", "POST", EVENTS, body=spec).status == 201


def _restart(machine: Machine) -> None:
    assert machine.stop() == 0
    machine.start()
