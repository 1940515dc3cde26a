"""Pauses on real servers: through kill -9 and restarts, with gateways, on all nodes of a cluster, and for workers.

A test sees that paused events wait by other deliveries: another tenant sends to the same receiver, and events that were
due earlier would have arrived before those.
"""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from everbell.core.time import parse_instant
from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Answer, Machine, until
from tests.acceptance.receiver import Received, Receiver
from tests.services import shared

PAUSES = "/v1/tenants/shop/pauses"
NAMES = "n1", "n2", "n3"


def host_of(receiver: Receiver) -> str:
    address = urlsplit(receiver.url("/ok"))
    return f"{address.scheme}://{address.netloc}"


def pause(machine: Machine, what: str, name: str | None = None, **more: object) -> Answer:
    answer = machine.call("POST", PAUSES, {"what": what, "name": name, **more})
    assert answer.status == 201, answer
    return answer


def resume(machine: Machine, what: str, name: str | None = None) -> None:
    named = "" if name is None else f"&name={quote(name, safe='')}"
    answer = machine.call("DELETE", f"{PAUSES}?what={what}{named}")
    assert answer.status == 200, answer


def passes(machine: Machine, receiver: Receiver, name: str) -> None:
    """Deliver another tenant's event, and with it pass the time in which paused events would have been delivered."""
    for path in (f"/{name}/{number}" for number in range(3)):
        machine.schedule(receiver.url(path), tenant="bank")
        until(partial(receiver.on, path), "the other tenant's event arrives")


def of_shop(receiver: Receiver) -> list[Received]:
    return [each for each in receiver.received if each.path.startswith("/ok")]


@pytest.mark.parametrize(("what", "options"), [("tenant", ()), ("key", ()), ("target", ("--gateways", "1"))])
def test_a_pause_survives_kills_and_delivery_resumes_in_order(
    tmp_path: Path, what: str, options: tuple[str, ...]
) -> None:
    with Receiver() as receiver, Machine(tmp_path, *options) as machine:
        name = {"tenant": None, "target": host_of(receiver), "key": "k"}[what]
        count = 30 if what == "key" else 150
        made = pause(machine, what, name, note="moving house").json

        def batch(start: int) -> list[dict[str, Any]]:
            key = {"key": "k"} if what == "key" else {}
            return [
                {"in": f"{number}ms", "to": receiver.url("/ok"), "payload": number, "id": f"e{number}", **key}
                for number in range(start, start + count)
            ]

        machine.schedule_many(batch(0))
        passes(machine, receiver, "before")
        machine.kill()
        machine.start()
        assert machine.call("GET", PAUSES).json["pauses"] == [made], "the server answered before it knew of the pause"
        machine.schedule_many(batch(count))
        passes(machine, receiver, "after")
        assert of_shop(receiver) == []

        resume(machine, what, name)
        until(lambda: len(of_shop(receiver)) == 2 * count, "everything arrives")
        got = of_shop(receiver)
        assert {each.attempt for each in got} == {1}, "the pause used up an attempt"
        assert sorted(int(each.body) for each in got) == list(range(2 * count))
        if what == "key":
            assert [int(each.body) for each in got] == list(range(2 * count))
        assert machine.call("GET", PAUSES).json == {"pauses": []}
        assert machine.stop() == 0


def test_a_pause_with_an_end_ends_by_itself_even_after_a_kill(tmp_path: Path) -> None:
    with Receiver() as receiver, Machine(tmp_path) as machine:
        until_at = parse_instant(pause(machine, "tenant", **{"for": "3s"}).json["until"])
        machine.schedule(receiver.url("/ok"))
        machine.kill()
        machine.start()
        until(lambda: of_shop(receiver), "it arrives")
        assert of_shop(receiver)[0].began_at >= until_at
        assert machine.metric('pauses{what="tenant"}') == 0


@pytest.mark.parametrize("options", [(), ("--gateways", "1")])
def test_a_paused_queue_leases_nothing_and_its_end_wakes_workers(tmp_path: Path, options: tuple[str, ...]) -> None:
    lease = "/v1/tenants/shop/queues/work/lease"
    with Machine(tmp_path, *options) as machine:
        for number in range(3):
            machine.schedule("queue:work", number)
        held = until(
            lambda: machine.call("POST", lease, {"limit": 1, "wait": "5s"}).json["events"], "one event is leased"
        )
        pause(machine, "queue", "work")
        assert machine.metric('pauses{what="queue"}') == 1 or options, "without gateways the pause is counted at once"
        assert machine.call("POST", lease, {"limit": 10, "wait": "300ms"}).json["events"] == []
        token = held[0]["lease"]
        done = machine.call("POST", "/v1/tenants/shop/queues/work/ack", {"leases": [token]})
        assert done.status == 200, done

        polled: list[Answer] = []
        worker = threading.Thread(
            target=lambda: polled.append(machine.call("POST", lease, {"limit": 10, "wait": "60s"}))
        )
        worker.start()
        resume(machine, "queue", "work")
        worker.join(30)
        assert [event["payload"] for event in polled[0].json["events"]] == [1, 2]


def test_a_pause_set_at_one_node_applies_on_all_nodes(tmp_path: Path) -> None:
    with Receiver() as receiver, Fleet(tmp_path, shared.postgres().fresh_schema(), "--lease", "1s") as fleet:
        fleet.add("n1")
        fleet.grow("n2", "n3")
        fleet.until_balanced(*NAMES)
        host = host_of(receiver)
        assert "unheard" not in pause(fleet.nodes["n1"], "target", host).json
        for node in fleet.nodes.values():
            assert len(node.call("GET", PAUSES).json["pauses"]) == 1, (
                "a node did not know of the pause when it was acknowledged"
            )
        assert fleet.view("n3")["pauses"] == 1
        for number in range(90):
            node = fleet.nodes[NAMES[number % 3]]
            node.schedule(receiver.url("/ok"), number, key=f"k{number % 5}", id=f"e{number}")
        for name in NAMES:
            passes(fleet.nodes[name], receiver, name)
        fleet.kill("n1")
        fleet.nodes["n1"].start()
        fleet.until_balanced(*NAMES)
        passes(fleet.nodes["n1"], receiver, "again")
        assert of_shop(receiver) == []

        fleet.nodes["n3"].signal(signal.SIGSTOP)
        try:
            assert pause(fleet.nodes["n2"], "key", "k1").json["unheard"] == ["n3"]
            resume(fleet.nodes["n2"], "key", "k1")
        finally:
            fleet.nodes["n3"].signal(signal.SIGCONT)
        fleet.until_balanced(*NAMES)
        resume(fleet.nodes["n2"], "target", host)
        until(lambda: len(of_shop(receiver)) == 90, "everything arrives")
        got = of_shop(receiver)
        for key in range(5):
            numbers = [int(each.body) for each in got if int(each.body) % 5 == key]
            assert numbers == sorted(numbers)
