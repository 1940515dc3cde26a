"""The Chronos facade on real nodes without a database, with the scenarios of the original's own test script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Answer, Machine, until
from tests.acceptance.receiver import Received, Receiver
from tests.services import shared

TIMERS = 100
INTERVAL_S = 4


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(1) as receiver:
        yield receiver


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    options = ("--lease", "1s", "--facade", "chronos=timers")
    with Fleet(tmp_path, "replicas:", *options, log=shared.postgres().fresh_schema()) as fleet:
        yield fleet
        for machine in fleet.nodes.values():
            assert "Traceback" not in machine.log, machine.log


def timer(uri: str, opaque: str = "x", interval: int = INTERVAL_S, **more: Any) -> dict[str, Any]:
    return {"timing": {"interval": interval}, "callback": {"http": {"uri": uri, "opaque": opaque}}, **more}


def joined(fleet: Fleet, *names: str) -> None:
    """Start nodes, and wait until all know each other."""
    fleet.grow(*names)
    for machine in fleet.nodes.values():
        until(lambda: len(members(machine)) == len(fleet.nodes), "all are members")  # noqa: B023 -- called at once


def members(machine: Machine) -> set[str]:
    return {each["name"] for each in machine.call("GET", "/v1/cluster").json["members"] if each["state"] == "member"}


def placed(answer: Answer) -> str:
    assert (answer.status, answer.body) == (200, b""), answer
    location = answer.headers["location"]
    assert location.startswith("/timers/"), location
    return location


def set_all(fleet: Fleet, uri: str, **more: Any) -> list[str]:
    """Set timers on all nodes in turns; returns their locations."""
    nodes = list(fleet.nodes.values())
    return [
        placed(nodes[n % len(nodes)].call("POST", "/timers", timer(uri, f"timer {n}", **more))) for n in range(TIMERS)
    ]


def popped(receiver: Receiver) -> Counter[str]:
    """The successful pops by the opaque data of their timers."""
    return Counter(each.body.decode() for each in list(receiver.received) if each.status == 200)


def until_all_pop(receiver: Receiver) -> None:
    wanted = {f"timer {n}" for n in range(TIMERS)}
    until(lambda: popped(receiver).keys() == wanted, lambda: f"{len(popped(receiver))} of {TIMERS} popped")


def test_timers_pop_as_with_chronos(fleet: Fleet, receiver: Receiver) -> None:
    joined(fleet, "n1", "n2")
    n1, n2 = fleet.nodes["n1"], fleet.nodes["n2"]
    answer = n1.call("GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")

    spec = timer(receiver.url("/ok/repeat"), "opaque äöü", 1)
    spec["timing"]["repeat_for"] = 3
    spec["statistics"] = {"tag-info": [{"type": "REG", "count": 2}, {"type": "REG"}, {"count": 7}, "nonsense"]}
    location = placed(n1.call("POST", "/timers/", spec, {"content-type": "text/weird"}))
    assert location.endswith("-2"), "two replicas are the default"
    pops: list[Received] = receiver.until_ended(3, "/ok/repeat")
    assert [each.headers["x-sequence-number"] for each in pops] == ["1", "2", "3"]
    assert {each.body.decode() for each in pops} == {"opaque äöü"}
    assert {each.headers["content-type"] for each in pops} == {"application/octet-stream"}
    assert 'everbell_facade_tags_total{tag="REG"} 3' in n1.call("GET", "/metrics").body.decode()

    # A timer that has ended is set anew under another name; one that is held keeps its name.
    again = placed(n2.call("PUT", location, timer(receiver.url("/ok/again"), "new", 3_600)))
    assert again != location
    assert placed(n1.call("PUT", again, timer(receiver.url("/ok/again"), "newer", 1))) == again
    [pop] = receiver.until_ended(1, "/ok/again")
    assert (pop.body, pop.headers["x-sequence-number"]) == (b"newer", "1")

    # A name of the client's own is created by PUT; deleting is the same with and without a timer.
    mine = "/timers/0123456789abcdef-2"
    assert placed(n1.call("PUT", mine, timer(receiver.url("/ok/mine"), "mine", 3_600))) == mine
    assert placed(n2.call("DELETE", mine)) == mine
    assert placed(n2.call("DELETE", "/timers/fedcba9876543210-2")) == "/timers/fedcba9876543210-2"
    assert n1.call("PATCH", mine).status == 405
    assert n1.call("PUT", "/timers/without-a-factor", timer("http://127.0.0.1/")).status == 404
    assert n1.call("GET", "/timer").status == 404


GOOD = timer("http://127.0.0.1:1/")
CALLBACK = GOOD["callback"]
MALFORMED: list[object] = [
    b"",
    b"{",
    b"[]",
    b'"timer"',
    b"\xff\xfe",
    {},
    {"callback": CALLBACK},
    {"timing": {"interval": 1}},
    {"timing": [], "callback": CALLBACK},
    {"timing": {}, "callback": CALLBACK},
    {"timing": {"interval": "1"}, "callback": CALLBACK},
    {"timing": {"interval": -1}, "callback": CALLBACK},
    {"timing": {"interval": 1.5}, "callback": CALLBACK},
    {"timing": {"interval": 1, "repeat-for": "x"}, "callback": CALLBACK},
    {"timing": {"interval": 0, "repeat-for": 10}, "callback": CALLBACK},
    {"timing": {"interval": 1}, "callback": {}},
    {"timing": {"interval": 1}, "callback": {"http": {"opaque": "x"}}},
    {"timing": {"interval": 1}, "callback": {"http": {"uri": "http://127.0.0.1/"}}},
    {"timing": {"interval": 1}, "callback": {"http": {"uri": "nonsense", "opaque": "x"}}},
    {"timing": {"interval": 1}, "callback": {"http": {"uri": 5, "opaque": "x"}}},
    {**GOOD, "reliability": {"replication-factor": 0}},
    {**GOOD, "reliability": {"replication-factor": 8}},
    {**GOOD, "reliability": []},
]


def test_malformed_bodies_are_refused_with_the_reason(fleet: Fleet) -> None:
    fleet.add("n1")
    n1 = fleet.nodes["n1"]
    for body in MALFORMED:
        answer = n1.call("POST", "/timers", body)
        assert answer.status == 400, (body, answer)
        assert answer.body.strip(), body
    other = n1.call("PUT", "/timers/0123456789abcdef-2", {**GOOD, "reliability": {"replication-factor": 3}})
    assert (other.status, b"3" in other.body) == (400, True), other
    assert n1.call("GET", "/v1/cluster").json["replicas"]["held"] == 0


def test_all_timers_pop_after_scaling_up_and_the_death_of_the_first_node(fleet: Fleet, receiver: Receiver) -> None:
    joined(fleet, "n1", "n2")
    set_all(fleet, receiver.url("/ok"), interval=12)
    joined(fleet, "n3", "n4")
    for name in ("n3", "n4"):
        held = f"{name} holds timers"
        until(lambda: fleet.nodes[name].call("GET", "/v1/cluster").json["replicas"]["held"] > 0, held)  # noqa: B023
    for name in fleet.nodes:
        view = fleet.nodes[name]
        until(lambda: view.call("GET", "/v1/cluster").json["replicas"]["resync_left"] == 0, "resynced")  # noqa: B023
    fleet.kill("n1")
    until_all_pop(receiver)


def test_receivers_that_refuse_the_first_try_and_deleted_timers(fleet: Fleet, receiver: Receiver) -> None:
    joined(fleet, "n1", "n2", "n3", "n4")
    gone = set_all(fleet, receiver.url("/ok/gone"), interval=6)
    set_all(fleet, receiver.url("/fail/1/503"), interval=1)
    for location in gone:
        assert placed(fleet.nodes["n4"].call("DELETE", location)) == location
    until_all_pop(receiver)
    # A timer that pops after all deleted ones would have.
    placed(fleet.nodes["n1"].call("POST", "/timers", timer(receiver.url("/ok/last"), interval=7)))
    receiver.until_ended(1, "/ok/last")
    answers = Counter(each.status for each in receiver.on("/fail/1/503"))
    assert answers == {503: TIMERS, 200: TIMERS}
    assert receiver.on("/ok/gone") == []


def test_all_timers_pop_after_scaling_down(fleet: Fleet, receiver: Receiver) -> None:
    joined(fleet, "n1", "n2", "n3", "n4")
    set_all(fleet, receiver.url("/ok"), interval=8)
    fleet.shrink("n1")
    fleet.shrink("n3")
    until_all_pop(receiver)


def test_all_timers_pop_after_scaling_up_and_down(fleet: Fleet, receiver: Receiver) -> None:
    joined(fleet, "n1", "n2")
    set_all(fleet, receiver.url("/ok"), interval=12)
    joined(fleet, "n3", "n4")
    fleet.shrink("n1")
    fleet.shrink("n2")
    until_all_pop(receiver)


def test_all_timers_pop_after_the_loss_of_one_of_two_sites(fleet: Fleet, receiver: Receiver) -> None:
    for name, site in {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}.items():
        fleet.add(name, "--zone", site)
    for machine in fleet.nodes.values():
        until(lambda: len(members(machine)) == 4, "four members")  # noqa: B023 -- called at once
    set_all(fleet, receiver.url("/ok"), interval=4)
    fleet.kill("b1")
    fleet.kill("b2")
    until_all_pop(receiver)
