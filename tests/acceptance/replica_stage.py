"""A cluster of nodes that hold events of replicas, a load, and the judgement of an independent checker."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.acceptance.fleet import Fleet
from tests.acceptance.load import Load, Shape
from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Receiver

POLICY = """
[defaults]
timeout = "1s"
replicas = {{count = 3, skew = "1s", ack = "{ack}"}}
"""


def shape(events: int, think_s: float = 0.0) -> Shape:
    """Events without keys, which replicas refuse, and with ids, so that a client may repeat every request."""
    return Shape(events, clients=3, keyed=0.0, own_ids=1.0, lead_ms=2_000, think_s=think_s, paths=("/ok", "/flaky"))


def policy(folder: Path, ack: str = "majority") -> str:
    """A file of settings with the policy of all tenants."""
    path = folder / "replicas.toml"
    path.write_text(POLICY.format(ack=ack))
    return str(path)


def held(machine: Machine) -> dict[str, Any]:
    """The events of replicas on one node."""
    return dict(machine.call("GET", "/v1/cluster").json["replicas"])


def members(machine: Machine) -> set[str]:
    return {each["name"] for each in machine.call("GET", "/v1/cluster").json["members"] if each["state"] == "member"}


def until_members(fleet: Fleet, *names: str) -> None:
    """Wait until all these nodes know each other, and no other."""
    for name in names:
        machine = fleet.nodes[name]
        until(lambda: members(machine) == set(names), lambda: f"members {members(machine)}")  # noqa: B023 -- called at once


def until_in_step(fleet: Fleet, *names: str) -> None:
    """Wait until these nodes are the members, have their copies, and owe none to the others."""
    until_members(fleet, *names)
    for name in names:
        machine = fleet.nodes[name]
        until(lambda: is_in_step(machine), lambda: f"{name} is in step: {held(machine)}")  # noqa: B023 -- called at once


def is_in_step(machine: Machine) -> bool:
    view = held(machine)
    return bool(view["settled"] and view["refilled"] and not view["behind"] and not view["resync_left"])


def judge(load: Load, fleet: Fleet) -> list[str]:
    """All acknowledged events arrive, none early or altered. Returns the events that came more than once.

    The checker expects an owner for each event. Replicas repeat deliveries after faults, with the same id and
    occurrence, and a second replica may repeat the number of an attempt: these two rules do not hold here.
    """
    load.finish()
    load.drain()
    wrong = [each for each in load.violations() if not each.startswith(("duplicate", "number"))]
    assert wrong == []
    for machine in fleet.nodes.values():
        assert "Traceback" not in machine.log, machine.log
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for seen in load.checker.seen:
        ids[seen.id].add(str(seen.occurrence))
    assert all(occurrences == {"1"} for occurrences in ids.values()), "an occurrence has one number"
    accepted = [seen.id for seen in load.checker.seen if seen.accepted]
    return sorted({name for name in accepted if accepted.count(name) > 1})


def until_delivered(receiver: Receiver, ids: list[str]) -> None:
    """Wait until all these events have arrived at least once."""

    def missing() -> set[str]:
        return set(ids) - {each.id for each in list(receiver.received) if each.accepted}

    until(lambda: not missing(), lambda: f"{len(missing())} of {len(ids)} are missing")
