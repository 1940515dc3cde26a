"""A tenant with some of everything, for the tests and the pictures of the operations page."""

from __future__ import annotations

import random
from typing import Any

from everbell import Client
from everbell.client.answers import EventView
from tests.acceptance.machine import until

REFUSED = "http://127.0.0.1:9/hook"
"""A target that refuses connections."""

PENDING = 300


def furnish(url: str, tenant: str = "shop", *, token: str | None = None, pending: int = PENDING) -> None:
    """Pending, retrying, waiting, dead, delivered and recurring events, a herd, a queue without a worker, a pause."""
    dice = random.Random(7)
    with Client(url, tenant=tenant, token=token) as client:
        client.schedule_many(_orders(dice, pending))
        client.schedule_many(
            {"payload": {"sale": n}, "in": "24m", "to": "queue:mail", "tags": ["sale"]} for n in range(90)
        )
        client.schedule_many({"payload": n, "in": 0, "to": "queue:invoices"} for n in range(4))
        for number in range(3):
            client.schedule(
                {"hook": number}, to=REFUSED, in_=0, id=f"lost-{number}", retry={"max_attempts": 1}, tags=["webhook"]
            )
        client.schedule({"step": "pack"}, to=REFUSED, in_=0, id="pack-7", key="order-7", retry={"backoff": "10m"})
        client.schedule({"step": "ship"}, to=REFUSED, in_=0, id="ship-7", key="order-7")
        weekdays = {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin", "misfire": "latest"}
        client.schedule({"kind": "daily"}, to="queue:reports", id="daily-report", repeat=weekdays)
        client.schedule({"kind": "sync"}, to="queue:reports", id="hourly-sync", repeat={"every": "1h"}, in_="40m")
        client.cancel(client.schedule(1, to="queue:mail", in_="1h", id="paid-in-time").id)
        until(lambda: _status(client, "lost-2") == "dead", "an event is dead")
        until(lambda: _status(client, "pack-7") == "retrying", "an event is tried again")


def _orders(dice: random.Random, count: int) -> list[dict[str, Any]]:
    targets = ("https://shop.example/timeouts", "queue:mail", "queue:invoices", "https://billing.example/hook")
    return [
        {
            "id": f"order-{1_000 + n}-timeout",
            "in": f"{dice.randrange(60, 3 * 3_600)}s",
            "to": dice.choice(targets),
            "key": f"order-{1_000 + n % 100}",
            "tags": dice.sample(["checkout", "mail", "import", "vip"], 2),
            "payload": {"order": 1_000 + n, "user": {"name": "Ada"}, "items": [{"sku": "A1", "count": 2}]},
        }
        for n in range(count)
    ]


def _status(client: Client, event_id: str) -> str:
    seen: EventView = client.get(event_id)
    return seen.status
