"""Three nodes that hold events in memory, without a store. Their log is in the database of `--postgres`."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import msgspec

from everbell.bench.bodies import payload
from everbell.bench.dialogue import BenchFailed, Partner
from everbell.bench.plans import BareHoldersPlan, LoadPlan
from everbell.bench.scene import BATCH, TENANT, load_plan, rest
from everbell.bench.stage import BenchStage, Server
from everbell.bench.usage import Usage, family_of, usage_of
from everbell.core.replicas.placement import Roster
from everbell.core.time import format_instant

NAMES = ("n1", "n2", "n3")
MEMORY = "8GiB"
_PATIENCE_S = 120.0
_LOOK_S = 0.1
_CALL_S = 30.0
# After a change of the members, the nodes begin to compare their copies within this time.
_QUIET_S = 4.0


class Trio:
    """The nodes, by number."""

    def __init__(self, stage: BenchStage, log: str, memory: str = MEMORY) -> None:
        self._stage = stage
        self._log = log
        self._memory = memory
        self._directories: list[Path] = [stage.directory() for _ in NAMES]
        self.nodes: list[Server] = []
        self.ports: list[int] = []
        for number in range(len(NAMES)):
            server, port = self._start(number)
            self.nodes.append(server)
            self.ports.append(port)
        for number in range(len(NAMES)):
            self.until(number, lambda view: len(view["members"]) == len(NAMES), "all three nodes are members")

    def _start(self, number: int) -> tuple[Server, int]:
        options = ("--node", NAMES[number], "--replica-memory", self._memory)
        return self._stage.server(self._directories[number], store="replicas:", log=self._log, options=options)

    def restart(self, number: int) -> None:
        """Start a node that was killed; returns when it answers."""
        self.nodes[number], self.ports[number] = self._start(number)

    def usage(self) -> Usage:
        """The resources of all nodes together."""
        return usage_of([pid for node in self.nodes for pid in family_of(node.process.pid)])

    def load(self, to: str, size: int, connections: int, *, due_from: int, due_span_ms: int) -> LoadPlan:
        """A load whose connections are spread over the nodes."""
        first, *others = self.ports
        plan = load_plan(first, to, size, connections, due_from=due_from, due_span_ms=due_span_ms)
        return msgspec.structs.replace(plan, more_ports=tuple(others))

    def call(self, number: int, method: str, path: str, body: bytes = b"") -> Any:
        """The JSON of an answer. Raises `BenchFailed` if it is a refusal."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[number], timeout=_CALL_S)
        kind = "application/x-ndjson" if body else "application/json"
        try:
            connection.request(method, path, body or None, {"content-type": kind})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status not in (200, 201):
            raise BenchFailed(f"{method} {path} was answered by {response.status} {answer[:300]!r}")
        return msgspec.json.decode(answer)

    def held(self, number: int) -> dict[str, Any]:
        """The copies of a node, as it reports them."""
        replicas: dict[str, Any] = self.call(number, "GET", "/v1/cluster")["replicas"]
        return replicas

    def settle(self) -> None:
        """Wait until no node has compared its copies with the others for a while."""
        give_up_s = perf_counter() + _PATIENCE_S
        quiet_s = perf_counter()
        while perf_counter() - quiet_s < _QUIET_S:
            rest(_LOOK_S)
            if any(self.held(number)["resync_left"] for number in range(len(NAMES))):
                quiet_s = perf_counter()
            if perf_counter() > give_up_s:
                raise BenchFailed("gave up waiting until the nodes have compared their copies")

    def until(self, number: int, is_so: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Wait until a node's view of the cluster is so."""
        give_up_s = perf_counter() + _PATIENCE_S
        while not is_so(self.call(number, "GET", "/v1/cluster")):
            if perf_counter() > give_up_s:
                raise BenchFailed(f"gave up waiting until {what}")
            rest(_LOOK_S)


def started_bare_holders(stage: BenchStage, batch: int, *, reads: bool) -> Partner:
    """Three bare holders, and the loop that sends to them."""
    holders = [stage.partner("everbell.bench.bare_holders", BareHoldersPlan(reads=reads)) for _ in NAMES]
    ports = tuple(int(holder.hear()["port"]) for holder in holders)
    loop = stage.partner("everbell.bench.bare_holders", BareHoldersPlan(ports, batch))
    loop.hear()
    return loop


def schedule_by_first(trio: Trio, dues: Sequence[int], to: Callable[[str, int], str]) -> dict[str, int]:
    """Create an event for each due time, with an id of its own, for the target of the node that is first in line.

    Returns how many events each path shall receive.
    """
    roster = Roster(dict.fromkeys(NAMES, ""))
    expected: Counter[str] = Counter()
    lines = []
    for number, due_at in enumerate(dues):
        event_id = f"bench-{number}"
        url = to(roster.replicas_of(event_id, len(NAMES))[0], due_at)
        expected[urlsplit(url).path] += 1
        event = {"id": event_id, "at": format_instant(due_at), "to": url, "payload": payload(number)}
        lines.append(msgspec.json.encode(event))
    for turn, start in enumerate(range(0, len(lines), BATCH)):
        body = b"\n".join(lines[start : start + BATCH])
        trio.call(turn % len(NAMES), "POST", f"/v1/tenants/{TENANT}/events/batch", body)
    return dict(expected)
