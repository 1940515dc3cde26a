"""A load of events through the HTTP API; the outcome of each is reported to the checker.

Several clients work in parallel, each on keys of its own, so that the order of a client's requests is the order of
acceptance in its keys. A request ends in one of three ways:

- acknowledged: a 2xx answer came;
- refused: the server refused it, or nothing was sent;
- unknown: the connection broke in between, or the server answered 500. With an id of its own the client repeats the
  request until the outcome is known; without an id the outcome stays unknown, and the event may be delivered or not.

Events are identified by their payload, which only the client creates.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from everbell.engine.row_preparer import PREPARED_EVENTS_MIN
from tests.acceptance.machine import PATIENCE_S, Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.checker import Asked, Checker, Seen

_AGAIN_S = 0.02
_PLAIN_BATCH = 2 * PREPARED_EVENTS_MIN
RETRY = {"max_attempts": 200, "backoff": "20ms", "max_backoff": "200ms"}


@dataclass(frozen=True)
class Shape:
    """The shape of a load."""

    events: int = 600
    clients: int = 3
    keys: int = 5
    keyed: float = 0.5
    own_ids: float = 0.5
    batched: float = 0.2
    batch: int = 20
    plain: float = 0.0
    """The share that comes as batches of plain events, in lines: enough for prepared rows."""
    cancelled: float = 0.0
    """The share of single events with ids of their own that the client cancels again, if possible."""
    think_s: float = 0.0
    """How long a client pauses between two requests."""
    lead_ms: int = 1_500
    paths: tuple[str, ...] = ("/ok", "/flaky", "/slow/5")
    tenant: str = "shop"


class Unknown(Exception):
    """The outcome of a request is unknown."""


class Unsent(Exception):
    """No server was reachable, so nothing was sent."""


class Load:
    """Clients in threads; `acknowledged` grows while they work."""

    def __init__(self, machine: Machine, receiver: Receiver, shape: Shape, seed: int) -> None:
        self.checker = Checker()
        self.statuses: dict[int, int] = {}
        """The number of requests that ended with each status."""
        self.enough = threading.Event()
        """Set by the test when it needs no more load."""
        self.answers: Counter[int] = Counter()
        """The same for every single answer, including those after which a client repeated the request."""
        self.longest_s = 0.0
        """The longest time until a client knew the outcome of a request."""
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
        """Wait until all events were requested."""
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive(), "a client hangs"
        if self._errors:
            raise self._errors[0]

    def run(self) -> None:
        self.start()
        self.finish()

    def until_acknowledged(self, count: int) -> None:
        """Wait for `count` acknowledgements, or for the end of the load."""
        until(lambda: self._acknowledged >= count or not self.working, f"{count} acknowledged")

    def drain(self) -> None:
        """Wait until all acknowledged events have arrived, and no event is left in the store."""

        def missing() -> set[str]:
            arrived = {_name(received.body) for received in list(self._receiver.received) if received.accepted}
            asked = self.checker.asked.values()
            return {each.id for each in asked if each.acknowledged_at is not None and not _is_cancelled(each)} - arrived

        until(lambda: not missing(), lambda: f"delivered: {sorted(missing())[:10]}\n{self._machine.log[-2_000:]}")
        tenant = self._shape.tenant
        until(lambda: self._machine.count(tenant, "scheduled") == 0, "nothing scheduled any more")
        assert self._machine.count(tenant, "dead") == 0

    def violations(self) -> list[str]:
        """The violations that the checker finds, and events whose id changed."""
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

    def saw(self, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self.answers[status] += 1

    def took(self, seconds: float) -> None:
        """A client knows the outcome of a request, or will never know it."""
        with self._lock:
            self.longest_s = max(self.longest_s, seconds)

    def answered(self, names: list[str], status: int) -> None:
        """Record the status of a request that ended."""
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
        """The positions in the last batch that were refused while others were accepted."""

    def work(self, events: int) -> None:
        shape = self._load._shape
        while self._made < events and not self._load.enough.wait(shape.think_s):
            if shape.plain and self._dice.random() < shape.plain:
                self._send([self._plain_event() for _ in range(_PLAIN_BATCH)], own_ids=False)
                continue
            many = shape.batch if self._dice.random() < shape.batched else 1
            own_ids = self._dice.random() < shape.own_ids
            batch = [self._event(own_ids) for _ in range(many)]
            began_s = time.monotonic()
            self._send(batch, own_ids)
            self._load.took(time.monotonic() - began_s)
            if own_ids and many == 1 and shape.cancelled and self._dice.random() < shape.cancelled:
                self._cancel(batch[0])
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
                    return  # A lost answer between two nodes may hide stored events.
                batch, names = [batch[place] for place in left], [names[place] for place in left]
                maybe_stored = True
                continue
            self._load.answered(names, status)
            return
        raise AssertionError("the server did not come back")

    def _cancel(self, event: dict[str, object]) -> None:
        """Cancel an event, and repeat the request until its outcome is known."""
        asked = self._load.checker.asked[_name(json.dumps(event["payload"]).encode())]
        path = f"/v1/tenants/{self._load._shape.tenant}/events/{quote(str(event['id']), safe='')}"
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                status, _ = self._exchange("DELETE", path, "", "application/json")
            except Unsent:
                time.sleep(_AGAIN_S)
                continue
            except Unknown:
                asked.cancel_unknown = True
                continue
            if status == 503:
                time.sleep(_AGAIN_S)
                continue
            assert status in (200, 409), f"{status} to the cancel of {event['id']}"
            if status == 200:
                asked.cancelled_at = now_ms()
            return
        raise AssertionError("the server did not come back")

    def _request(self, batch: list[dict[str, object]]) -> int:
        path = f"/v1/tenants/{self._load._shape.tenant}/events" + ("/batch" if len(batch) > 1 else "")
        body, content_type = json.dumps(batch if len(batch) > 1 else batch[0]), "application/json"
        if "retry" not in batch[0]:
            body, content_type = "\n".join(map(json.dumps, batch)), "application/x-ndjson"
        status, content = self._exchange("POST", path, body, content_type)
        self._failed = [error["index"] for error in json.loads(content)["errors"]] if status == 207 else []
        return status

    def _exchange(self, method: str, path: str, body: str, content_type: str) -> tuple[int, bytes]:
        if self._connection is None:
            address = urlsplit(self._load._machine.url)
            self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE_S)
            try:
                self._connection.connect()
            except OSError as error:
                self._connection = None
                raise Unsent from error
        try:
            self._connection.request(method, path, body, {"content-type": content_type})
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = None
            raise Unknown from error
        self._load.saw(response.status)
        if response.status in (500, 504):
            raise Unknown
        return response.status, content


def instant(at: int) -> str:
    """RFC 3339, to the millisecond."""
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds")


def _is_cancelled(asked: Asked) -> bool:
    """Whether the event need not arrive."""
    return asked.cancelled_at is not None or asked.cancel_unknown


def _name(body: bytes) -> str:
    return str(json.loads(body)["name"])
