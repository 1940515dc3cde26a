"""`everbell status`, `drain`, `undrain` and `top` against a scripted server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from everbell.cli.main import main
from everbell.core.cluster import Drain, Remove, Value, apply
from everbell.core.cluster.view import view_of
from tests.unit.client.scripted import Answer, HangUp, ScriptedServer, problem
from tests.unit.core.cluster.test_view import joined, played, two

METRICS = """\
everbell_scheduled_total {scheduled}
everbell_delivered_total 7
everbell_retried_total 0
everbell_in_flight 3
everbell_cluster_lease_left_seconds 2.25
everbell_lateness_seconds_bucket{{le="0.001"}} 5
everbell_lateness_seconds_bucket{{le="0.01"}} 10
everbell_lateness_seconds_bucket{{le="+Inf"}} 10
"""


class Played:
    def __init__(self, code: int, out: str, err: str, server: ScriptedServer) -> None:
        self.code, self.out, self.err, self.asked = code, out, err, server.asked


@pytest.fixture
def play(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("EVERBELL_SERVER", "EVERBELL_TENANT", "EVERBELL_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def run(command: str, *script: Answer | HangUp) -> Played:
        with ScriptedServer(*script) as server:
            code = main([*command.split(), "--server", server.url])
        printed = capsys.readouterr()
        return Played(code, printed.out, printed.err, server)

    return run


def shown(value: Value) -> Answer:
    """The cluster, as its node a shows it."""
    return Answer(200, view_of(value, "a/x", "a", 12, 2_345, {}), {"content-type": "application/json"})


READY = {
    "state": "ready",
    "node": "a",
    "store": {"state": "ok"},
    "disk": {"ok": True, "free_bytes": 12_300_000_000, "reserve_bytes": 1},
    "cluster": {"ok": True, "is_member": True, "partitions": 3, "lease_left_ms": 2_345, "log_lag_ms": 12},
    "backlog": {"ok": True, "overdue_ms": 0, "starved_flows": 0, "in_flight": 7},
}


def health(status: int = 200, **changes: Any) -> Answer:
    return Answer(status, READY | changes, {"content-type": "application/json"})


def metrics(scheduled: int = 20) -> Answer:
    return Answer(200, METRICS.format(scheduled=scheduled).encode(), {"content-type": "text/plain"})


def rows(text: str, *names: str) -> dict[str, list[str]]:
    """Lines of a table by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.split() and line.split()[0] in names}


def test_status_shows_members_and_transitions(play: Any) -> None:
    done = play("status", health(), shown(two()))
    assert done.code == 0
    assert [(asked.method, asked.target) for asked in done.asked] == [("GET", "/readyz"), ("GET", "/v1/cluster")]
    assert "6 owned" in done.out
    assert "2345 ms left" in done.out
    table = rows(done.out, "a", "b")
    assert table["a"][:3] == ["a", "member", "3"]
    assert table["b"][-1] == "http://b:2"
    assert "release" in done.out
    assert "EPOCH" not in done.out


def test_status_shows_partitions_when_asked_to(play: Any) -> None:
    done = play("status --partitions", health(), shown(played(*joined("a", "b"))))
    assert "EPOCH" in done.out
    assert sum("moving" in line.split()[1:2] for line in done.out.splitlines()) == 3


def test_status_names_stand_ins(play: Any) -> None:
    value = apply(two(), two().index + 1, Remove("b/x", by="a/x", reason="its lease ended"))
    done = play("status", health(), shown(value))
    assert "a stands in for b: 3 partitions" in done.out
    assert "its lease ended" in done.out


def test_status_is_json_for_programs(play: Any) -> None:
    done = play("status --json", health(), shown(two()))
    told = json.loads(done.out)
    assert [member["name"] for member in told["members"]] == ["a", "b"]
    assert told["health"] == READY


def test_status_shows_the_health_of_every_part(play: Any) -> None:
    done = play("status", health(), shown(two()))
    assert done.out.splitlines()[:5] == [
        "a is ready",
        "  store    ok",
        "  disk     ok, 12.3 GB free",
        "  cluster  ok, 3 partitions, lease 2345 ms left",
        "  backlog  ok, oldest overdue 0.0 s, 7 in flight",
    ]


def test_status_shows_health_also_when_the_cluster_cannot_be_shown(play: Any) -> None:
    why = "the database does not answer"
    store = {"state": "away", "reason": why, "since": "2026-11-16T01:02:03.456Z"}
    backlog = {"ok": False, "overdue_ms": 90_000, "starved_flows": 1, "in_flight": 0, "reason": "too slow"}
    away = health(503, state="away", reason=f"the store cannot be used: {why}", store=store, backlog=backlog)
    done = play("status", away, shown(two()))
    assert done.code == 1
    assert "a is away: the store cannot be used: the database does not answer\n" in done.out
    assert "  store    away since 2026-11-16T01:02:03.456Z: the database does not answer\n" in done.out
    assert "  backlog  not ok, oldest overdue 90.0 s, 0 in flight: too slow\n" in done.out
    done = play("status", away, problem(403, "forbidden", "it lacks read"))
    assert (done.code, done.err) == (1, "everbell status: it lacks read\n")
    assert done.out.startswith("a is away")


def test_nothing_in_a_name_reaches_the_terminal(play: Any) -> None:
    view = json.loads(msgspec.json.encode(view_of(two(), "a/x", "a", 0, 0, {})))
    view["members"][1]["name"] = "b\x1b[2J"
    done = play("status", health(node="a\x1b[2J"), Answer(200, view, {"content-type": "application/json"}))
    assert "\x1b" not in done.out


@pytest.mark.parametrize("command", ["drain", "undrain", "cluster forget"])
def test_an_order_about_a_node_is_sent(play: Any, command: str) -> None:
    value = apply(two(), two().index + 1, Drain("b"))
    done = play(f"{command} b", shown(value))
    [asked] = done.asked
    assert (asked.method, asked.target, asked.json) == ("POST", f"/v1/cluster/{command.split()[-1]}", {"node": "b"})
    assert rows(done.out, "b")["b"][1] == "draining"


def test_a_node_that_is_not_there_is_an_error(play: Any) -> None:
    done = play("drain c", problem(404, "not-found", "there is no node 'c'; there are a, b"))
    assert done.code != 0
    assert "there are a, b" in done.err


def test_top_shows_rates_between_two_looks(play: Any) -> None:
    alone = played(*joined("a"))
    done = play("top --every 1ms --count 2", shown(alone), metrics(20), shown(alone), metrics(20))
    assert done.code == 0
    assert [asked.target for asked in done.asked] == ["/v1/cluster", "/metrics"] * 2
    first, second = (line.split() for line in done.out.splitlines() if line.startswith("a "))
    assert first[:6] == ["a", "member", "6", "-", "-", "-"]
    assert second[3:7] == ["0", "0", "0", "3"]
    assert second[-2:] == ["2.2", "s"]
    assert "≤1 ms" in done.out


def test_top_shows_dashes_for_a_node_that_does_not_answer(play: Any) -> None:
    value = two()
    members = {name: msgspec.structs.replace(member, addresses=()) for name, member in value.members.items()}
    done = play("top --count 1", shown(msgspec.structs.replace(value, members=members)), metrics())
    assert rows(done.out, "b")["b"] == ["b", "member", "3", *"-------"]


def test_top_is_json_for_programs(play: Any) -> None:
    done = play("top --count 1 --json", shown(played(*joined("a"))), metrics())
    [node] = json.loads(done.out)["nodes"]
    assert (node["node"], node["in_per_s"], node["in_flight"], node["late_p99_s"]) == ("a", None, 3, 0.01)
