"""The data of the upgrade tests: a store with events of every kind, and a picture of it as a version reports it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.acceptance.load import instant
from tests.acceptance.machine import Machine, now_ms, until
from tests.acceptance.receiver import Receiver

TENANTS = "past", "shop", "bank"
KEYS = "k0", "k1", "k2"
PLAIN = 80
"""The number of events in lines that are stored as prepared rows."""
KEYED = 8
"""The number of events in each key."""
STUCK = tuple(f"stuck/{number}" for number in range(4))
STATUSES = "scheduled", "waiting", "retrying", "paused", "dead", "delivered", "cancelled", "expired"
_PAGE = 25
_FEW = 5
"""The number of events with generated ids, of each kind, that are looked at one by one."""
_LATER = {"max_attempts": 5, "backoff": "1h", "max_backoff": "2h"}
POLICY = {
    "retry": {"max_attempts": 3, "backoff": "1s"},
    "retention": "7d",
    "secrets": ["whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()],
    "limits": {"tags": 5},
}


def path_of(event_id: str, tenant: str = "past") -> str:
    """The path of an event in the API."""
    return f"/v1/tenants/{tenant}/events/{quote(event_id, safe='')}"


def done(machine: Machine, method: str, path: str, body: object = None, **headers: str) -> Any:
    """Send a request that has to succeed; returns the document of the answer."""
    answer = machine.call(method, path, body, headers)
    assert 200 <= answer.status < 300, (method, path, answer)
    return answer.json


@dataclass
class Written:
    """The content of a store, as far as the tests need it afterwards."""

    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The bodies of events with client-given ids in the tenant `shop`."""
    plain: set[str] = field(default_factory=set)
    reader: str = ""
    revoked: str = ""
    delivered: dict[str, Any] = field(default_factory=dict)
    """The body of an event that was delivered."""


def write(machine: Machine, receiver: Receiver) -> Written:
    """Store events of every kind. None of them changes by itself afterwards."""
    written = Written()
    _write_past(machine, receiver, written)
    _write_pending(machine, receiver, written)
    done(machine, "PUT", "/v1/tenants/bank", POLICY)
    done(machine, "POST", "/v1/tenants/bank/pauses", {"what": "queue", "name": "work", "note": "lunch", "for": "1h"})
    for number in range(3):
        machine.schedule("queue:work", number, "bank", id=f"job/{number}", key="jobs")
    _make_keys(machine, written)
    return written


def _until(machine: Machine, event_id: str, name: str, value: object) -> None:
    """Wait until a field of an event has a value.

    The previous version does not find an event that moves in a table while it is read. So a 404 is no failure here.
    """
    until(lambda: machine.call("GET", path_of(event_id)).json.get(name) == value, f"{event_id}: {name} is {value}")


def _write_past(machine: Machine, receiver: Receiver, written: Written) -> None:
    """Events that have ended, or are stuck."""
    written.delivered = {"id": "done/own", "in": 0, "to": receiver.url("/ok/past"), "payload": {"a": [1, None]}}
    done(machine, "POST", "/v1/tenants/past/events", written.delivered | {"tags": ["old"]})
    ended = {
        "done/own": "delivered",
        machine.schedule(receiver.url("/ok/past"), tenant="past", key="once"): "delivered",
        machine.schedule(
            receiver.url("/ok/past"), 1, "past", id="tried", retry=_LATER | {"backoff": "1ms"}
        ): "delivered",
        machine.schedule(receiver.url("/ok/past"), tenant="past", id="late", at=instant(0), expires="1s"): "expired",
        machine.schedule(receiver.url("/ok/past"), tenant="past", id="twice", repeat={"every": "20ms", "count": 2}): (
            "delivered"
        ),
        machine.schedule(receiver.url("/sick/dead"), tenant="past", id="dead/own", retry={"max_attempts": 1}): "dead",
        machine.schedule(receiver.url("/sick/dead"), tenant="past", retry={"max_attempts": 1}, tags=["old"]): "dead",
        machine.schedule(receiver.url("/status/503"), tenant="past", id="again", retry=_LATER): "retrying",
        machine.schedule(receiver.url("/ok/past"), tenant="past", id="off", **{"in": "1h"}): "cancelled",
        machine.schedule(receiver.url("/ok/past"), tenant="past", **{"in": "1h"}): "cancelled",
    }
    for event_id in [name for name, status in ended.items() if status == "cancelled"]:
        done(machine, "DELETE", path_of(event_id))
    for event_id, status in ended.items():
        _until(machine, event_id, "status", status)
    # A key with a head that waits for its next attempt, and the events behind it.
    for number, event_id in enumerate(STUCK):
        to = receiver.url("/ok/stuck" if number else "/sick/stuck")
        machine.schedule(to, number, "past", id=event_id, key="stuck", retry=_LATER)
    _until(machine, STUCK[0], "status", "retrying")
    for event_id in STUCK[1:]:
        _until(machine, event_id, "status", "waiting")
    # Recurring events: one in progress, one with a calendar, one paused.
    hourly = {"every": "1h", "count": 5, "misfire": "latest", "overlap": "skip"}
    machine.schedule(receiver.url("/ok/past"), tenant="past", id="hourly", repeat=hourly, at=instant(now_ms()))
    _until(machine, "hourly", "occurrence", 2)
    cron = {"cron": "30 9 * * mon-fri", "tz": "Europe/Berlin", "jitter": "5s"}
    machine.schedule(receiver.url("/ok/past"), tenant="past", id="calendar", repeat=cron)
    machine.schedule(receiver.url("/ok/resumed"), tenant="past", id="resting", repeat={"every": "1h"}, **{"in": "30m"})
    done(machine, "PATCH", path_of("resting"), {"paused": True, "note": "holidays"})


def _write_pending(machine: Machine, receiver: Receiver, written: Written) -> None:
    """Events that are due and held back by a pause, and events that are due later."""
    done(machine, "POST", "/v1/tenants/shop/pauses", {"what": "tenant", "note": "moving house"})
    start = now_ms()
    lines = [{"at": instant(start + n % 7), "to": receiver.url("/ok/plain"), "payload": n} for n in range(PLAIN)]
    body = "\n".join(map(json.dumps, lines)).encode()
    answer = machine.call("POST", "/v1/tenants/shop/events/batch", body, {"content-type": "application/x-ndjson"})
    assert answer.status == 201, answer
    written.plain = set(answer.json["ids"])
    events: list[dict[str, Any]] = [
        # The last event in the request is the first that is due.
        {"id": f"{key}/{n}", "key": key, "at": instant(start - n), "to": receiver.url(f"/ok/keyed/{key}"), "payload": n}
        for n in range(KEYED)
        for key in KEYS
    ]
    events += [
        {"id": "own/1", "to": receiver.url("/ok/own"), "payload": {"ä": "€"}, "tags": ["a", "b"], "expires": "1d"},
        {
            "id": "own/bytes",
            "to": receiver.url("/ok/own"),
            "payload_base64": base64.b64encode(bytes(range(256))).decode(),
            "content_type": "application/octet-stream",
            "headers": {"x-team": "orders"},
        },
        {"id": "thrice", "to": receiver.url("/ok/thrice"), "repeat": {"every": "50ms", "count": 3}, "payload": 3},
        {"id": "far/ring", "to": receiver.url("/ok/far"), "at": instant(start + 3_600_000), "payload": 1},
        {"id": "far/cancel", "to": receiver.url("/ok/far"), "at": instant(start + 3_600_000), "tags": ["cancel"]},
        {"id": "far/move", "to": receiver.url("/ok/far"), "at": instant(start + 3_600_000), "key": "k0"},
    ]
    for event in events:
        event.setdefault("at", instant(start))
        written.requests[str(event["id"])] = event
    machine.schedule_many(events)


def _make_keys(machine: Machine, written: Written) -> None:
    made = done(machine, "POST", "/v1/keys", {"tenant": "*", "scopes": ["admin"], "note": "the operator"})
    machine.token = made["key"]
    written.reader = done(machine, "POST", "/v1/keys", {"tenant": "shop", "scopes": ["read"]})["key"]
    revoked = done(machine, "POST", "/v1/keys", {"tenant": "shop", "scopes": ["read", "schedule"], "note": "lost"})
    written.revoked = revoked["key"]
    done(machine, "DELETE", f"/v1/keys/{revoked['id']}")


def picture(machine: Machine) -> dict[str, Any]:
    """All information that a server returns about the stored data."""
    seen: dict[str, Any] = {
        "tenants": [each for each in done(machine, "GET", "/v1/tenants")["tenants"] if each["name"] in TENANTS],
        "keys": done(machine, "GET", "/v1/keys")["keys"],
        "line": done(machine, "GET", "/v1/tenants/past/keys/stuck"),
    }
    for tenant in TENANTS:
        seen[f"policy of {tenant}"] = done(machine, "GET", f"/v1/tenants/{tenant}")
        seen[f"pauses of {tenant}"] = done(machine, "GET", f"/v1/tenants/{tenant}/pauses")["pauses"]
        for status in STATUSES:
            events = found(machine, tenant, f"status={status}")
            seen[f"{status} of {tenant}"] = events
            made = [event for event in events if event["id"].startswith("ev_")]
            for event in [event for event in events if event not in made[_FEW:]]:
                seen[f"{event['id']} of {tenant}"] = done(machine, "GET", path_of(event["id"], tenant))
    seen["tagged"] = found(machine, "shop", "tag=a") + found(machine, "past", "tag=old&status=delivered")
    seen["of a key"] = found(machine, "shop", "key=k1")
    return seen


def found(machine: Machine, tenant: str, query: str) -> list[dict[str, Any]]:
    """The result of a search, over several pages."""
    events: list[dict[str, Any]] = []
    cursor = ""
    while True:
        more = f"&cursor={cursor}" if cursor else ""
        page = done(machine, "GET", f"/v1/tenants/{tenant}/events?limit={_PAGE}&{query}{more}")
        events += page["events"]
        cursor = page.get("cursor", "")
        if not cursor:
            return events


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Information that was returned before and differs now. A version may return more than the one before it."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name in after:
                yield from differences(value, after[name], f"{where}/{name}")
            else:
                yield f"{where}/{name} is gone: {value!r}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{where}/{index}")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"
