"""Several nodes of one cluster: real processes on a real database, which a test kills, stops, and starts again.

To a load it looks like one machine: whoever connects gets the next node that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.acceptance.machine import Machine, until
from tests.acceptance.receiver import Received


class Fleet:
    """Nodes by name, sharing a store and a log."""

    def __init__(self, folder: Path, store: str, *options: str, log: str = "") -> None:
        self.nodes: dict[str, Machine] = {}
        self.disturbances = 0
        """How often partitions may have changed hands without a release: that many more deliveries can be explained."""
        self._folder = folder
        self._options = ["--store", store, *(["--log", log] if log else []), *options]
        self._turn = count()

    def add(self, name: str, *options: str) -> Machine:
        """A new node; it is started, and ready."""
        machine = self.nodes[name] = self.machine(name, *options)
        machine.start()
        return machine

    def machine(self, name: str, *options: str) -> Machine:
        """A node that is not started yet."""
        return Machine(self._folder / name, *self._options, "--node", name, *options)

    def grow(self, *names: str) -> None:
        """Start nodes at the same time."""
        for name in names:
            self.nodes[name] = self.machine(name)
            self.nodes[name].begin()
        for name in names:
            self.nodes[name].await_ready()

    def shrink(self, name: str) -> None:
        """Let a node leave."""
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
        """Wait until the cluster is as it should be."""
        seen: list[dict[str, Any]] = [{}]

        def look() -> bool:
            seen[0] = self.view(name)
            return is_so(seen[0])

        until(look, lambda: f"{what}: {_brief(seen[0])}")
        return seen[0]

    def until_balanced(self, *names: str) -> None:
        """Wait until exactly these nodes own everything, in equal shares."""

        def is_balanced(view: dict[str, Any]) -> bool:
            owned = {member["name"]: member.get("partitions", 0) for member in view["members"]}
            settled = view["partition_states"] == {"owned": len(view["partitions"])}
            return settled and set(owned) == set(names) and max(owned.values()) - min(owned.values()) <= 1

        self.until(is_balanced, f"balanced over {names}")

    # What a load asks of a machine

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
    """Deliveries of an event under a lower epoch than one that began before it."""
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
