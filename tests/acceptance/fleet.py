"""Several nodes of one cluster: real processes on a real database, which a test kills, stops, and starts again.

A load treats the fleet as one machine: each connection goes to the next running node.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Received
from tests.previous import NEW, Version


class Fleet:
    """Nodes by name, sharing a store and a log."""

    def __init__(self, folder: Path, store: str, *options: str, log: str = "") -> None:
        self.nodes: dict[str, Machine] = {}
        self.disturbances = 0
        """How often partitions may have changed owners without a release: each allows one more delivery of an event."""
        self.version: Version = NEW
        """The version that new nodes run."""
        self._folder = folder
        self._options = ["--store", store, *(["--log", log] if log else []), *options]
        self._turn = count()

    def add(self, name: str, *options: str) -> Machine:
        """Start a new node, and wait until it is ready."""
        machine = self.nodes[name] = self.machine(name, *options)
        machine.start()
        return machine

    def machine(self, name: str, *options: str) -> Machine:
        """A node that is not started yet."""
        machine = Machine(self._folder / name, *self._options, "--node", name, *options)
        machine.version = self.version
        return machine

    def grow(self, *names: str) -> None:
        """Start nodes at the same time."""
        for name in names:
            self.nodes[name] = self.machine(name)
            self.nodes[name].begin()
        for name in names:
            self.nodes[name].await_ready()

    def shrink(self, name: str) -> None:
        """Stop a node, so that it leaves the cluster."""
        code = self.nodes.pop(name).stop()
        assert code == 0, f"{name} ended with {code}"

    def kill(self, name: str) -> None:
        self.disturbances += 1
        self.nodes[name].kill()

    def view(self, name: str | None = None) -> dict[str, Any]:
        """The cluster, as one node sees it."""
        machine = self.nodes[name] if name is not None else self._alive()[0]
        answer = machine.call("GET", "/v1/cluster")
        assert answer.status == 200, answer
        return dict(answer.json)

    def until(self, is_so: Callable[[dict[str, Any]], bool], what: str, name: str | None = None) -> dict[str, Any]:
        """Wait until the view of the cluster fulfils a condition."""
        seen: list[dict[str, Any]] = [{}]

        def look() -> bool:
            seen[0] = self.view(name)
            return is_so(seen[0])

        until(look, lambda: f"{what}: {_brief(seen[0])}")
        return seen[0]

    def until_balanced(self, *names: str) -> None:
        """Wait until exactly these nodes own all partitions, in equal shares."""

        def is_balanced(view: dict[str, Any]) -> bool:
            owned = {member["name"]: member.get("partitions", 0) for member in view["members"]}
            settled = view["partition_states"] == {"owned": len(view["partitions"])}
            return settled and set(owned) == set(names) and max(owned.values()) - min(owned.values()) <= 1

        self.until(is_balanced, f"balanced over {names}")

    # The interface of a machine that a load uses

    @property
    def url(self) -> str:
        alive = self._alive()
        return alive[next(self._turn) % len(alive)].url

    @property
    def log(self) -> str:
        return "\n".join(f"-- {name}\n{machine.log}" for name, machine in self.nodes.items())

    @property
    def starts(self) -> int:
        return 1 + self.disturbances

    def count(self, tenant: str, status: str) -> int:
        return self._alive()[0].count(tenant, status)

    def _alive(self) -> list[Machine]:
        return [machine for machine in list(self.nodes.values()) if machine.url and not machine.ended]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for machine in self.nodes.values():
            machine.__exit__(kind, error, traceback)


def epochs_go_back(received: list[Received]) -> list[str]:
    """Deliveries of an event under a lower epoch than an earlier delivery."""
    latest: dict[str, int] = {}
    wrong = []
    for each in sorted(received, key=lambda each: each.began_at):
        if each.epoch < latest.get(each.id, 0):
            wrong.append(f"epoch: {each.id} came under {each.epoch} after {latest[each.id]}")
        latest[each.id] = max(each.epoch, latest.get(each.id, 0))
    return wrong


def _brief(view: dict[str, Any]) -> dict[str, Any]:
    return {
        "members": [
            (member["name"], member["state"], member.get("partitions", 0)) for member in view.get("members", ())
        ],
        "states": view.get("partition_states"),
        "last": view.get("transitions", [])[-5:],
    }
