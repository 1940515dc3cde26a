"""The faults of a cluster: one after the other, drawn from a generator of their own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Protocol

from everbell.core.cluster import Balanced, Drain, PutDocument, SetStrategy, Undrain, Weighted
from everbell.core.pause import Pause, What, encode_pause
from tests.simulation.network import NEVER_S, Network
from tests.simulation.rough_log import LOG
from tests.simulation.rough_node import RoughNode
from tests.simulation.rough_store import STORE


class Machines(Protocol):
    """The machines of the nodes."""

    nodes: dict[str, RoughNode]
    names: list[str]

    @property
    def now(self) -> int: ...

    def boot(self, name: str) -> None: ...

    def crash(self, name: str, again_s: float) -> None: ...

    def restart(self, name: str, drain_s: float, again_s: float) -> None: ...


class Faults:
    """Causes faults until it is told to stop."""

    def __init__(
        self, machines: Machines, network: Network, dice: random.Random, kinds: tuple[str, ...], keys: int
    ) -> None:
        self.count: Counter[str] = Counter()
        self._keys = keys
        self._machines = machines
        self._network = network
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
            self.happen(kind, self._dice.choice(self._machines.names), self._dice.uniform(0.2, 8.0))

    def happen(self, kind: str, name: str, seconds: float) -> None:  # noqa: C901 -- one case for each fault
        network, dice, machines = self._network, self._dice, self._machines
        process = machines.nodes[name].process
        match kind:
            case "crash":
                machines.crash(name, dice.expovariate(0.5))
            case "fuse":
                process.fuse = dice.randrange(600)
            case "pause":
                process.pause(seconds)
            case "cut-log":
                self._cut(name, LOG, seconds)
            case "cut-store":
                self._cut(name, STORE, seconds)
            case "cut-node":
                self._cut(name, dice.choice(machines.names), seconds)
            case "one-way":
                pair = [name, dice.choice((LOG, STORE, *machines.names))]
                dice.shuffle(pair)
                network.cut(pair[0], pair[1], seconds)
            case "island":
                for other in (LOG, STORE, *machines.names):
                    self._cut(name, other, seconds)
            case "storm":
                network.storm(seconds)
            case "restart":
                machines.restart(name, dice.uniform(0.0, 6.0), dice.expovariate(0.5))
            case "log-away" | "store-away":
                for other in machines.names:
                    self._cut(other, LOG if kind == "log-away" else STORE, seconds / 2)
            case "lossy-link" | "slow-link":
                self._degrade(name, seconds, **({"loss": 0.4} if kind == "lossy-link" else {"delay_s": 0.7}))
            case "bridge":
                self._bridge(name, seconds)
            case "flapping-link":
                self._flap(name, dice.choice((LOG, STORE, *machines.names)), seconds)
            case "operator":
                self._operate(name)
            case "hold":
                self._hold(name, seconds)
            case "clock":
                process.step(dice.randrange(-400, 400))
            case _:
                raise AssertionError(kind)

    def _degrade(self, name: str, seconds: float, loss: float = 0.0, delay_s: float = 0.0) -> None:
        """One link loses or delays messages, in one direction or in both."""
        other = self._dice.choice((LOG, STORE, *self._machines.names))
        self._network.degrade(name, other, 2 * seconds, loss, delay_s)
        if self._dice.random() < 0.5:
            self._network.degrade(other, name, 2 * seconds, loss, delay_s)

    def _bridge(self, middle: str, seconds: float) -> None:
        """Two halves of the nodes do not see each other; one node, the log and the store see all."""
        names = [name for name in self._machines.names if name != middle]
        half = names[: len(names) // 2]
        for one in half:
            for other in names:
                if other not in half:
                    self._cut(one, other, seconds)

    def _flap(self, name: str, other: str, seconds: float) -> None:
        """A link is cut and healed again and again."""
        self._cut(name, other, seconds / 8)
        for number in range(1, 5):
            asyncio.get_running_loop().call_later(number * seconds / 4, self._cut, name, other, seconds / 8)

    def _operate(self, name: str) -> None:
        """An operator distributes the partitions in another way, or drains a node for a while."""
        node = self._machines.nodes[name]
        weights = {other: self._dice.randint(1, 5) for other in self._machines.names}
        other = self._dice.choice(self._machines.names)
        commands = (SetStrategy(Balanced()), SetStrategy(Weighted(weights)), Drain(other), Undrain(other))
        command = self._dice.choice(commands)
        if node.node is not None and not node.process.dead:
            node.process.call(node.node.append, command)

    def _hold(self, name: str, seconds: float) -> None:
        """An operator pauses a tenant, a key or a target for a while."""
        node = self._machines.nodes[name]
        tenant = self._dice.choice(("default", "parking"))
        what: What = self._dice.choice(("tenant", "key", "key", "target"))
        names = {"tenant": "", "key": f"{tenant}-{self._dice.randrange(self._keys)}", "target": "https://host0.slow"}
        now = self._machines.now
        pause = Pause(tenant, what, names[what], now, "nobody", until_at=now + int(seconds * 1_000))
        if node.node is not None and not node.process.dead:
            node.process.call(node.node.append, PutDocument(pause.place, encode_pause(pause)))

    async def keep_ill(self, name: str) -> None:
        """One node stays faulty while the others are healthy again."""
        kind = self._dice.choice(("dead", "island", "deaf", "mute", "gray", "flapping", "stumbling"))
        self.count[kind] += 1
        match kind:
            case "dead":
                self._machines.crash(name, NEVER_S)
            case "island":
                self.happen("island", name, NEVER_S)
            case "deaf" | "mute":
                for other in (LOG, *self._machines.names):
                    pair = (other, name) if kind == "deaf" else (name, other)
                    self._network.cut(*pair)
            case "gray":
                self._cut(name, STORE, NEVER_S)
            case "flapping":
                while True:
                    await asyncio.sleep(self._dice.uniform(4, 20))
                    self._machines.crash(name, self._dice.uniform(0, 4))
            case _:
                while True:
                    await asyncio.sleep(self._dice.uniform(2, 10))
                    self._machines.nodes[name].process.pause(self._dice.uniform(1, 6))

    def _cut(self, name: str, other: str, seconds: float) -> None:
        self._network.cut(name, other, seconds)
        self._network.cut(other, name, seconds)
