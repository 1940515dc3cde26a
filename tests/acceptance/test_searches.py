"""Searches, counts, forecasts and exports on real servers while clients add, move and cancel events, others are
delivered, and nodes die and come back. `tests/search_checker.py` judges each answer by what the clients know.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from everbell.client.blocking import Client
from everbell.errors import EverbellError
from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Answer, Machine, now_ms, until
from tests.acceptance.receiver import Receiver
from tests.search_checker import SearchChecker
from tests.services import shared

HOUR_MS = 3_600_000
EVENTS = "/v1/tenants/shop/events"
COLORS = "red", "blue"
TARGETS = "queue:a", "queue:b"
NAMES = 120
"""The events that clients change; as many others stay as they are."""
SOON_MS = 1_500


class Scene:
    """Threads that change and search the events of some nodes until they are told to stop."""

    def __init__(self, nodes: Fleet, receiver: Receiver) -> None:
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self._nodes = nodes
        self._receiver = receiver
        self._checker = SearchChecker()
        self._cancelled: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._errors: list[BaseException] = []
        self._base_at = now_ms() // HOUR_MS * HOUR_MS + 2 * HOUR_MS

    @contextmanager
    def running(self) -> Iterator[None]:
        """Search without changes first, so that a wrong answer to a quiet search is seen as such."""
        dice = random.Random("first")
        for number in range(NAMES):
            self._put(f"stays-{number}", dice)
        self._search(random.Random("quiet"))
        self._foresee()
        works: list[Callable[[random.Random], None]] = [self._change, self._change, self._deliver]
        works += [self._search, self._search, self._count, self._export]
        threads = [threading.Thread(target=self._repeat, args=(work, n)) for n, work in enumerate(works)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            for thread in threads:
                thread.join(120)
        if self._errors:
            raise self._errors[0]
        self._search(random.Random("quiet again"))
        self._foresee()

    def until_seen_again(self, times: int = 1) -> None:
        """Wait until every kind of question was answered again."""
        before = self.seen.copy()
        kinds = "searches", "exports", "counts", "forecasts", "changes"
        until(
            lambda: self._errors or all(self.seen[what] >= before[what] + times for what in kinds),
            lambda: f"{times} more of {before}: {self.seen}",
        )

    def _repeat(self, work: Callable[[random.Random], None], number: int) -> None:
        dice = random.Random(f"{number}/{work.__name__}")
        try:
            while not self._enough.is_set():
                work(dice)
        except BaseException as error:
            self._errors.append(error)

    # Changes

    def _change(self, dice: random.Random) -> None:
        # Every thread has names of its own, so that it knows the order of its changes.
        stem = f"moves-{threading.get_ident()}-{dice.randrange(NAMES)}"
        name = f"{stem}-{self._cancelled[stem]}"
        if dice.random() < 0.3:
            self._cancel(name)
            self._cancelled[stem] += 1  # The name of a cancelled event is used up.
        else:
            self._put(name, dice)
        self.seen["changes"] += 1

    def _put(self, name: str, dice: random.Random) -> None:
        at = self._base_at + dice.randrange(6 * HOUR_MS)
        content = {"at": at, "tags": [dice.choice(COLORS)], "to": dice.choice(TARGETS)}
        self._begin(name, (0, at), content)
        self._until_known("PUT", f"{EVENTS}/{name}", {**content, "at": _text(at)})
        self._settle(name)

    def _cancel(self, name: str) -> None:
        self._begin(name, None, None)
        self._until_known("DELETE", f"{EVENTS}/{name}")
        self._settle(name)

    def _deliver(self, dice: random.Random) -> None:
        """Schedule an event that is delivered soon; nothing tells when its end is stored."""
        at = now_ms() + SOON_MS
        name = f"soon-{self.seen['soon']}"
        self.seen["soon"] += 1
        content = {"at": at, "tags": ["soon"], "to": self._receiver.url("/ok")}
        self._begin(name, (0, at), content)
        self._until_known("PUT", f"{EVENTS}/{name}", {**content, "at": _text(at)})
        self._settle(name)
        with self._lock:
            self._checker.begin(name, None, None, at)
        self._enough.wait(0.05)

    def _begin(self, name: str, place: tuple[int, int] | None, content: object) -> None:
        with self._lock:
            self._checker.begin(name, place, content, now_ms())

    def _settle(self, name: str) -> None:
        with self._lock:
            self._checker.settle(name, now_ms() + 1)

    # Searches

    def _search(self, dice: random.Random) -> None:
        color, to, prefix = dice.choice((None, *COLORS)), dice.choice((None, *TARGETS)), dice.choice((None, "moves-"))
        from_at, until_at = sorted(self._base_at + dice.randrange(6 * HOUR_MS) for _ in range(2))
        if dice.random() < 0.5:
            from_at, until_at = self._base_at, self._base_at + 9 * HOUR_MS
        query = {"limit": "20", "from": _text(from_at), "until": _text(until_at)}
        query |= {} if color is None else {"tag": color}
        query |= {} if to is None else {"to": to}
        query |= {} if prefix is None else {"id_prefix": prefix}

        def is_meant(one: dict[str, Any]) -> bool:
            return (
                from_at <= one["at"] <= until_at
                and (color is None or color in one["tags"])
                and (to is None or one["to"].startswith(to))
            )

        began = now_ms()
        found, cursor = [], ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            page = self._until_known("GET", f"{EVENTS}?{urlencode({**query, **more})}").json
            found += [event["id"] for event in page["events"]]
            cursor = page.get("cursor") or ""
            if not cursor:
                break
        self._judge("searches", found, began, is_meant, prefix)

    def _export(self, dice: random.Random) -> None:
        began = now_ms()
        found: list[str] = []
        cursor: str | None = None
        while True:
            try:
                with Client(self._nodes.url, tenant="shop") as client:
                    page = client.export_page(cursor=cursor, to="queue:", limit=50)
            except (EverbellError, OSError, ZeroDivisionError):  # No node runs, or the asked one has just died.
                self._enough.wait(0.01)
                continue
            found += [json.loads(line)["id"] for line in page.lines]
            cursor = page.cursor
            if cursor is None:
                break
        self._judge("exports", found, began, lambda one: one["to"].startswith("queue:"))

    def _count(self, dice: random.Random) -> None:
        color = dice.choice(COLORS)
        began = now_ms()
        number = self._until_known("GET", f"/v1/tenants/shop/count?tag={color}").json["count"]
        with self._lock:
            # An event that moved to an earlier place may be missing, so the kept ones are the least.
            kept = [one for one in self._checker.kept(began, now_ms() + 1) if color in one["tags"]]
            _, most = self._checker.bounds(began, now_ms() + 1, lambda one: color in one["tags"])
        if not len(kept) <= number <= most:
            self.violations.append(f"count: {number}, {len(kept)} to {most} expected")
        self.seen["counts"] += 1
        self._foresee()

    def _foresee(self) -> None:
        began = now_ms()
        forecast = self._until_known("GET", "/v1/tenants/shop/forecast?per=hour&count=12").json
        due = {span["at"]: span["due"] for span in forecast["spans"]}
        with self._lock:
            kept = self._checker.kept(began, now_ms() + 1)
        least = Counter(_text(one["at"] // HOUR_MS * HOUR_MS) for one in kept if one["at"] >= self._base_at)
        self.violations += [f"forecast: {due[at]} at {at}, {n} expected" for at, n in least.items() if due[at] < n]
        self.seen["forecasts"] += 1

    def _judge(
        self, what: str, found: list[str], began: int, is_meant: Callable[[Any], bool], prefix: str | None = None
    ) -> None:
        with self._lock:
            wrong = self._checker.violations(found, began, now_ms() + 1, is_meant)
        # The content of a stay does not have the name, so a prefix is judged here.
        wrong = [each for each in wrong if prefix is None or each.split()[1].startswith(prefix)]
        self.violations += [f"{what}: {each}" for each in wrong]
        self.violations += [f"{what}: {name} has another name" for name in found if not name.startswith(prefix or "")]
        self.seen[what] += 1

    def _until_known(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request to one node after the other until one gives a definite answer."""
        answers: list[Answer] = []

        def ask() -> bool:
            try:
                answers[:] = [self._call(method, path, body)]
            except (OSError, http.client.HTTPException):
                return False
            return answers[0].status < 500

        until(ask, lambda: f"an answer to {method} {path}: {answers}")
        # 404 and 409: a repeated request may find that the first one was done, or that the event was delivered since.
        assert answers[0].status in (200, 201, 404, 409), answers
        return answers[0]

    def _call(self, method: str, path: str, body: object) -> Answer:
        alive = [machine for machine in list(self._nodes.nodes.values()) if machine.url and not machine.ended]
        if not alive:
            raise ConnectionError("no node runs")
        return random.choice(alive).call(method, path, body)


def _text(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("store", ["postgres", "cassandra"])
def test_searches_are_right_while_events_move_and_nodes_take_over(store: str, tmp_path: Path) -> None:
    url = shared.postgres().fresh_schema() if store == "postgres" else shared.cassandra().fresh_store()
    with Fleet(tmp_path, url, "--lease", "1s") as fleet, Receiver(1) as receiver:
        fleet.grow("n1", "n2", "n3")
        fleet.until_balanced("n1", "n2", "n3")
        scene = Scene(fleet, receiver)
        with scene.running():
            scene.until_seen_again()
            fleet.kill("n3")
            fleet.until_balanced("n1", "n2")
            scene.until_seen_again()
            fleet.nodes["n3"].start()
            fleet.until_balanced("n1", "n2", "n3")
            scene.until_seen_again()
    assert scene.violations == []


def test_searches_of_one_server_are_right_while_events_move_and_it_is_killed(tmp_path: Path) -> None:
    class Alone(Fleet):
        def machine(self, name: str, *options: str) -> Machine:
            return Machine(self._folder / name)

    with Alone(tmp_path, "") as server, Receiver(1) as receiver:
        server.add("alone")
        scene = Scene(server, receiver)
        with scene.running():
            scene.until_seen_again()
            server.kill("alone")
            server.nodes["alone"].start()
            scene.until_seen_again()
    assert scene.violations == []
