"""Collecting from a real outbox: exactly once in both directions, through kills of every process at every step."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Machine, until
from tests.acceptance.outbox_stage import Application, EffectServer, fetch, judge, rows_left, schedule, with_outbox
from tests.acceptance.receiver import Receiver
from tests.acceptance.test_gateways import TWO
from tests.services import shared
from tests.services.postgres import PostgresServer


@pytest.fixture
def url() -> str:
    """A database with an outbox."""
    return with_outbox(shared.postgres().fresh_database())


def metric(machine: Machine, name: str) -> int:
    """The sum of a metric over all outboxes."""
    lines = machine.call("GET", "/metrics").body.decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith(f"everbell_outbox_{name}{{"))


def test_kills_of_the_application_everbell_and_postgresql_leave_every_order_with_one_effect(tmp_path: Path) -> None:
    with shared.had(PostgresServer) as server:
        url = with_outbox(server.fresh_database())
        with EffectServer(url) as effects, Machine(tmp_path, "--outbox", url) as machine:
            with Application(url, effects.url) as application:
                for victim in ("application", "everbell", "postgresql", "everbell", "postgresql", "application"):
                    application.until_more(15)
                    if victim == "everbell":
                        machine.kill()
                        machine.start()
                    if victim == "postgresql":
                        server.kill()
                        server.start()
                    # The application ends when its database does.
                    if victim != "everbell":
                        application.kill()
                        application.start()
                application.until_more(15)
            assert judge(application, machine) > 100
            assert machine.stop() == 0


@pytest.mark.parametrize("victim", ["everbell", "postgresql"])
def test_rows_that_are_durable_and_not_removed_yet_come_again_to_no_effect(tmp_path: Path, victim: str) -> None:
    with shared.had(PostgresServer) as server, Receiver() as receiver:
        url = with_outbox(server.fresh_database())
        machine = Machine(tmp_path, "--outbox", url)
        schedule(url, *({"to": receiver.url("/ok"), "in": 0, "id": f"now-{number}"} for number in range(3)))
        schedule(url, {"to": receiver.url("/ok/later"), "in": "2h", "id": "later"})
        fetch(url, "SELECT everbell.reschedule('later', '{\"by\": \"-1h\"}', 'shop')")
        schedule(url, {"to": receiver.url("/ok/later"), "in": "1h", "id": "never"})
        fetch(url, "SELECT everbell.cancel('never', 'shop')")
        with closing(psycopg.connect(url)) as blocker:
            # Rows can be read and not removed, so the collector stands still between the two.
            blocker.execute("LOCK TABLE everbell.outbox IN SHARE MODE")
            machine.start()
            receiver.until_ended(3, "/ok")
            machine.until_status("never", "cancelled")
            until(lambda: machine.event("later")["version"] == 2, "moved")
            due = machine.event("later")["at"]
            until(lambda: machine.event("now-2")["status"] == "delivered", "finished")
            # A user changes the moved event before its row comes again.
            changed = machine.call("PATCH", "/v1/tenants/shop/events/later", {"by": "10m"})
            assert changed.status == 200, changed
            if victim == "everbell":
                machine.kill()
            else:
                server.kill()
        if victim == "everbell":
            machine.start()
        else:
            server.start()
        with machine:
            until(lambda: not rows_left(url), "all rows are removed")
            assert [each.id for each in receiver.on("/ok")] == ["now-0", "now-1", "now-2"]
            assert machine.event("never")["status"] == "cancelled"
            assert machine.event("later")["version"] == 3
            assert machine.event("later")["at"] == changed.json["at"] > due
            assert fetch(url, "SELECT * FROM everbell.outbox_refused") == []


def test_a_long_transaction_is_neither_lost_nor_in_the_way_of_others(tmp_path: Path, url: str) -> None:
    with Receiver() as receiver, Machine(tmp_path, "--outbox", url, *TWO) as machine:
        event = {"to": receiver.url("/ok"), "in": 0}
        with psycopg.connect(url) as slow, psycopg.connect(url) as undone:
            slow.execute("SELECT everbell.schedule(%s, 'shop')", (json.dumps({**event, "id": "slow", "key": "k"}),))
            undone.execute("SELECT everbell.schedule(%s, 'shop')", (json.dumps({**event, "id": "undone"}),))
            for number in range(10):
                schedule(url, {**event, "id": f"quick-{number}"})
            receiver.until_ended(10, "/ok")
            undone.rollback()
            slow.execute("SELECT everbell.schedule(%s, 'shop')", (json.dumps({**event, "id": "slower", "key": "k"}),))
            slow.commit()
        receiver.until_ended(12, "/ok")
        got = [each.id for each in receiver.on("/ok")]
        assert got[10:] == ["slow", "slower"]
        assert sorted(got[:10]) == [f"quick-{number}" for number in range(10)]
        until(lambda: metric(machine, "events_total") == 12, "events are counted once")
        health = until(lambda: machine.call("GET", "/healthz").json.get("outbox"), "health")
        assert health["ok"]
        assert machine.stop() == 0


def test_refused_rows_are_kept_with_the_reason_and_stop_no_other(tmp_path: Path, url: str) -> None:
    config = "[tenants.full]\nlimits = { pending = 1 }\n[tenants.small]\nlimits = { payload = 10 }\n"
    with Machine(tmp_path, "--outbox", url, config=config) as machine:
        for tenant, id in (("full", "a"), ("full", "b"), ("small", "c"), ("shop", "d")):
            event = {"to": "queue:a", "in": "1h", "payload": "more than ten", "id": id}
            fetch(url, "SELECT everbell.schedule($1, $2)", json.dumps(event), tenant)
        until(lambda: machine.count("shop", "scheduled"), "another tenant is served")
        ((id, reason),) = until(lambda: fetch(url, "SELECT id, reason FROM everbell.outbox_refused"), "refused")
        assert (id, reason) == ("c", "payload: has 15 bytes; the tenant's limit is 10")
        # The row of the full tenant waits in the outbox, and is taken when there is room.
        assert rows_left(url) == 1
        until(lambda: "pending" in machine.call("GET", "/healthz").json["outbox"].get("reason", ""), "health says so")
        assert machine.call("DELETE", "/v1/tenants/full/events/a").status == 200
        until(lambda: not rows_left(url), "taken")
        assert machine.event("b", "full")["status"] == "scheduled"
        until(lambda: machine.call("GET", "/healthz").json["outbox"]["ok"], "well again")


def test_nodes_share_outboxes_and_another_continues_when_one_is_killed(tmp_path: Path, url: str) -> None:
    server = shared.postgres()
    second = with_outbox(server.fresh_database())
    with Receiver() as receiver, Fleet(tmp_path, server.fresh_schema(), "--outbox", url, "--outbox", second) as fleet:
        first = fleet.add("a")
        until(lambda: metric(first, "collecting") == 2, "one node collects both")
        fleet.add("b")
        fleet.until_balanced("a", "b")
        event = {"to": receiver.url("/ok"), "in": 0}
        for number in range(20):
            schedule(url, {**event, "id": f"one-{number}", "key": f"k{number % 3}"})
            schedule(second, {**event, "id": f"two-{number}"})
        receiver.until_ended(40, "/ok")
        fleet.kill("a")
        schedule(url, {**event, "id": "one-last"})
        schedule(second, {**event, "id": "two-last"})
        until(lambda: {"one-last", "two-last"} <= {each.id for each in receiver.on("/ok")}, "the other node collects")
        ids = [each.id for each in receiver.on("/ok")]
        assert len(set(ids)) == 42


def test_an_outbox_that_cannot_be_reached_disturbs_nothing_and_is_collected_later(tmp_path: Path) -> None:
    with shared.had(PostgresServer) as server, Receiver() as receiver:
        url = with_outbox(server.fresh_database())
        schedule(url, {"to": receiver.url("/ok/outbox"), "in": 0})
        server.stop()
        with Machine(tmp_path, "--outbox", url) as machine:
            machine.schedule(receiver.url("/ok/http"))
            receiver.until_ended(1, "/ok/http")
            until(lambda: not machine.call("GET", "/healthz").json["outbox"]["ok"], "health says so")
            health = machine.call("GET", "/healthz").json
            assert health["state"] == "ready"
            assert "cannot be reached" in health["outbox"]["reason"]
            assert "word" not in health["outbox"]["reason"]
            server.start()
            receiver.until_ended(1, "/ok/outbox")
            until(lambda: machine.call("GET", "/healthz").json["outbox"]["ok"], "well again")
