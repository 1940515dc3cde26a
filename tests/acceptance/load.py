"""A load of events through the HTTP API, and what became of each, told to the checker.

Several clients work side by side, each on keys of its own, so that the order in which a client asks is the order of
acceptance in its keys. A request ends in one of three ways:

- acknowledged: a 2xx answer came;
- refused: the server said no, or nothing was sent;
- unknown: the connection broke in between, or the server said that it is broken (500). With an id of its own the client
  asks again until it knows; without, it stays unknown, and may be delivered or not.

Events are told apart by their payload, which nobody but the client makes up.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from everbell.engine.parceller import PARCEL_EVENTS_MIN
from tests.acceptance.machine import PATIENCE_S, Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.checker import Asked, Checker, Seen

_AGAIN_S = 0.02
_PLAIN_BATCH = 2 * PARCEL_EVENTS_MIN
RETRY = {"max_attempts": 200, "backoff": "20ms", "max_backoff": "200ms"}


@dataclass(frozen=True)
class Shape:
    """What a load looks like."""

    events: int = 600
    clients: int = 3
    keys: int = 5
    keyed: float = 0.5
    own_ids: float = 0.5
    batched: float = 0.2
    batch: int = 20
    plain: float = 0.0
    """How much of it comes as batches of plain events, in lines: so many that they are stored as a parcel."""
    lead_ms: int = 1_500
    paths: tuple[str, ...] = ("/ok", "/flaky", "/slow/5")
    tenant: str = "shop"


class Unknown(Exception):
    """Nobody can say whether a request was done."""


class Unsent(Exception):
    """Nobody was there to be asked."""


class Load:
    """Clients in threads; `acknowledged` grows while they work."""

    def __init__(self, machine: Machine, receiver: Receiver, shape: Shape, seed: int) -> None:
        self.checker = Checker()
        self.statuses: dict[int, int] = {}
        """How often each status was answered."""
        self._machine = machine
        self._receiver = receiver
        self._shape = shape
        self._seed = seed
        self._lock = threading.Lock()
        self._index = 0
        self._acknowledged = 0
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(shape.clients)]
        self._own_ids: dict[str, str] = {}

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def working(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until all was asked for."""
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "a client hangs"
        if self._errors:
            raise self._errors[0]

    def run(self) -> None:
        self.start()
        self.finish()

    def until_acknowledged(self, count: int) -> None:
        """Wait for so many acknowledgements, or for the end of the load."""
        until(lambda: self._acknowledged >= count or not self.working, f"{count} acknowledged")

    def drain(self) -> None:
        """Wait until everything that was acknowledged has arrived, and nothing is left in the store."""

        def missing() -> set[str]:
            arrived = {_name(received.body) for received in list(self._receiver.received) if received.accepted}
            asked = self.checker.asked.values()
            return {each.id for each in asked if each.acknowledged_at is not None} - arrived

        until(lambda: not missing(), lambda: f"delivered: {sorted(missing())[:10]}\n{self._machine.log[-2_000:]}")
        tenant = self._shape.tenant
        until(lambda: self._machine.count(tenant, "scheduled") == 0, "nothing scheduled any more")
        assert self._machine.count(tenant, "dead") == 0

    def violations(self) -> list[str]:
        """What the checker finds, and whether ids were stable."""
        self.checker.restarts = self._machine.starts - 1
        names: dict[str, set[str]] = {}
        for received in self._receiver.received:
            name = _name(received.body)
            names.setdefault(name, set()).add(received.id)
            self.checker.see(
                Seen(
                    name,
                    received.occurrence,
                    received.attempt,
                    received.epoch,
                    received.body,
                    received.began_at,
                    received.ended_at,
                    received.accepted,
                    received.answer_lost,
                )
            )
        wrong = [
            f"number: {name} came under the ids {sorted(ids)}, asked for as {self._own_ids.get(name)}"
            for name, ids in names.items()
            if len(ids) > 1 or (name in self._own_ids and ids != {self._own_ids[name]})
        ]
        return wrong + self.checker.violations()

    def _work(self, number: int) -> None:
        try:
            client = _Client(self, number, random.Random(f"{self._seed}/{number}"))
            client.work(self._shape.events // self._shape.clients)
        except BaseException as error:
            self._errors.append(error)

    def ask(self, asked: Asked, own_id: str | None) -> None:
        with self._lock:
            self._index += 1
            self.checker.ask(replace(asked, index=self._index))
            if own_id is not None:
                self._own_ids[asked.id] = own_id

    def answered(self, names: list[str], status: int) -> None:
        """A request came to a known end."""
        with self._lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
            for name in names:
                asked = self.checker.asked[name]
                if 200 <= status < 300:
                    asked.acknowledged_at = now_ms()
                    self._acknowledged += 1
                else:
                    asked.refused = True


class _Client:
    """One client, one connection, one request at a time."""

    def __init__(self, load: Load, number: int, dice: random.Random) -> None:
        self._load = load
        self._number = number
        self._dice = dice
        self._made = 0
        self._connection: http.client.HTTPConnection | None = None
        self._failed: list[int] = []
        """The places in the last batch of those that were refused while others were not."""

    def work(self, events: int) -> None:
        shape = self._load._shape
        while self._made < events:
            if shape.plain and self._dice.random() < shape.plain:
                self._send([self._plain_event() for _ in range(_PLAIN_BATCH)], own_ids=False)
                continue
            many = shape.batch if self._dice.random() < shape.batched else 1
            own_ids = self._dice.random() < shape.own_ids
            batch = [self._event(own_ids) for _ in range(many)]
            self._send(batch, own_ids)
        if self._connection is not None:
            self._connection.close()

    def _event(self, own_id: bool) -> dict[str, object]:
        shape, dice = self._load._shape, self._dice
        self._made += 1
        name = f"c{self._number}-{self._made}"
        due_at = now_ms() + dice.randrange(shape.lead_ms)
        key = f"k{self._number}-{dice.randrange(shape.keys)}" if dice.random() < shape.keyed else None
        event: dict[str, object] = {
            "at": instant(due_at),
            "to": self._load._receiver.url(dice.choice(shape.paths)),
            "payload": {"name": name},
            "retry": RETRY,
        }
        if key is not None:
            event["key"] = key
        if own_id:
            event["id"] = f"own/{name}"
        asked = Asked(name, due_at, json.dumps(event["payload"]).encode(), key, 0)
        self._load.ask(asked, str(event["id"]) if own_id else None)
        return event

    def _plain_event(self) -> dict[str, object]:
        self._made += 1
        name = f"c{self._number}-{self._made}"
        due_at = now_ms() + self._dice.randrange(self._load._shape.lead_ms)
        payload = {"name": name}
        self._load.ask(Asked(name, due_at, json.dumps(payload).encode(), None, 0), None)
        return {"at": instant(due_at), "to": self._load._receiver.url("/ok"), "payload": payload}

    def _send(self, batch: list[dict[str, object]], own_ids: bool) -> None:
        names = [_name(json.dumps(event["payload"]).encode()) for event in batch]
        deadline = time.monotonic() + PATIENCE_S
        maybe_stored = False
        while time.monotonic() < deadline:
            try:
                status = self._request(batch)
            except Unsent:
                time.sleep(_AGAIN_S)
                continue
            except Unknown:
                if not own_ids:
                    return
                maybe_stored = True
                continue
            if status == 503 or (maybe_stored and status >= 500):
                time.sleep(_AGAIN_S)
                continue
            if status == 207:
                left = self._failed
                self._load.answered([name for place, name in enumerate(names) if place not in left], 201)
                if not own_ids:
                    return  # Some may be stored all the same, with their answer lost between two nodes.
                batch, names = [batch[place] for place in left], [names[place] for place in left]
                maybe_stored = True
                continue
            self._load.answered(names, status)
            return
        raise AssertionError("the server did not come back")

    def _request(self, batch: list[dict[str, object]]) -> int:
        path = f"/v1/tenants/{self._load._shape.tenant}/events" + ("/batch" if len(batch) > 1 else "")
        body, content_type = json.dumps(batch if len(batch) > 1 else batch[0]), "application/json"
        if "retry" not in batch[0]:
            body, content_type = "\n".join(map(json.dumps, batch)), "application/x-ndjson"
        if self._connection is None:
            address = urlsplit(self._load._machine.url)
            self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
            try:
                self._connection.connect()
            except OSError as error:
                self._connection = None
                raise Unsent from error
        try:
            self._connection.request("POST", path, body, {"content-type": content_type})
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = None
            raise Unknown from error
        if response.status in (500, 504):
            raise Unknown
        self._failed = [error["index"] for error in json.loads(content)["errors"]] if response.status == 207 else []
        return response.status


def instant(at: int) -> str:
    """RFC 3339, to the millisecond."""
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds")


def _name(body: bytes) -> str:
    return str(json.loads(body)["name"])
