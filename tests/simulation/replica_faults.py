"""The faults of a cluster of replicas: one after the other, drawn from a generator of their own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Protocol

from tests.simulation.network import Network
from tests.simulation.receivers import Receivers
from tests.simulation.replica_node import ReplicaNode
from tests.simulation.rough_log import LOG


class ReplicaMachines(Protocol):
    """The machines of the nodes."""

    nodes: dict[str, ReplicaNode]

    def boot(self, name: str) -> None: ...

    def crash(self, name: str) -> None: ...

    def restart(self, name: str, drain_s: float) -> None: ...

    def troubled(self, *names: str) -> None: ...

    def split(self, sides: list[list[str]], seconds: float) -> None: ...


class ReplicaFaults:
    """Causes faults until it is told to stop."""

    def __init__(
        self,
        machines: ReplicaMachines,
        network: Network,
        receivers: Receivers,
        dice: random.Random,
        kinds: tuple[str, ...],
    ) -> None:
        self.count: Counter[str] = Counter()
        self._machines = machines
        self._network = network
        self._receivers = receivers
        self._dice = dice
        self._kinds = kinds

    async def run(self, a_minute: float, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        while a_minute:
            await asyncio.sleep(self._dice.expovariate(a_minute / 60))
            if loop.time() >= until_s:
                return
            kind = self._dice.choice(self._kinds)
            self.count[kind] += 1
            self.happen(kind, self._dice.choice(list(self._machines.nodes)), self._dice.uniform(0.2, 10.0))

    def happen(self, kind: str, name: str, seconds: float) -> None:  # noqa: C901 -- one case for each fault
        network, dice, machines = self._network, self._dice, self._machines
        names = list(machines.nodes)
        process = machines.nodes[name].process
        other = dice.choice(names)
        match kind:
            case "crash":
                machines.crash(name)
            case "fuse":
                machines.troubled(name)
                process.fuse = dice.randrange(600)
            case "pause":
                machines.troubled(name)
                process.pause(seconds * dice.choice((1, 1, 5)))
            case "cut-node":
                machines.troubled(name, other)
                self._cut(name, other, seconds)
            case "one-way":
                machines.troubled(name, other)
                network.cut(name, other, seconds * 2)
            case "split":
                dice.shuffle(names)
                cut = dice.randint(1, max(1, len(names) - 1))
                machines.split([names[:cut], names[cut:]], seconds * 5)
            case "island":
                machines.split([[name], [each for each in (*names, LOG) if each != name]], seconds * 5)
            case "storm":
                machines.troubled(*names)
                network.storm(seconds)
            case "restart":
                machines.restart(name, dice.uniform(0.0, 10.0))
            case "grow":
                if len(names) < 7:
                    machines.boot(f"n{len(names)}")
            case "log-away":
                for each in names:
                    self._cut(each, LOG, seconds * 15)
            case "cut-log":
                self._cut(name, LOG, seconds * 2)
            case "cut-receivers":
                machines.troubled(name)
                self._receivers.cut_until_s[name] = asyncio.get_running_loop().time() + seconds * 2
            case "clock":
                process.step(dice.randrange(-1_000, 1_000))
            case _:
                raise AssertionError(kind)

    def _cut(self, name: str, other: str, seconds: float) -> None:
        self._network.cut(name, other, seconds)
        self._network.cut(other, name, seconds)
