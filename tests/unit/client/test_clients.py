"""Both clients against a scripted server: the same calls, the same patience, the same errors.

Each test is written once, for the client that waits; the one that awaits runs behind the same face.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, assert_type

import pytest
from msgspec import Raw

from everbell.channels.queue import Lease
from everbell.client.answers import Redriven, Settled, TrialOutcome
from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.client.queue_calls import Failure
from everbell.errors import Conflict, EverbellError, InvalidInput, NotFound, Overloaded, Unreachable, VersionMismatch
from tests.unit.client.scripted import Answer, HangUp, ScriptedServer, Silence, problem

AT = "2026-11-20T10:00:00.250Z"
SCHEDULED = {"id": "ev_1", "at": AT, "status": "scheduled", "version": 1}
EVENT = SCHEDULED | {
    "tenant": "shop",
    "to": "queue:q",
    "occurrence": 1,
    "created_at": AT,
    "attempt_count": 1,
    "payload": {"order": 17},
    "attempts": [{"number": 1, "started_at": AT, "duration_ms": 5, "result": "failed", "reason": "down", "code": 503}],
    "a_field_of_the_future": True,
}
OK = Answer(200, EVENT)
BYTES = {name: value for name, value in EVENT.items() if name != "payload"} | {
    "payload_base64": "AP8=",
    "content_type": "image/png",
}
ODD = EVENT | {"id": "ev_2", "payload": Raw(b'{"order": 1e400}')}


class Face:
    """A client that awaits, looking like one that waits: every call is awaited on a loop of its own."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = AsyncClient(*args, **options)
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **options: Any) -> Any:
            result = getattr(self._client, name)(*args, **options)
            if inspect.isasyncgen(result):
                return self._each(result)
            return self._runner.run(result)

        return method

    def _each(self, items: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._runner.run(anext(items))
            except StopAsyncIteration:
                return

    def look_around(self) -> None:
        """Let the loop process events of its sockets while its clock stands still; a real loop has no such clock."""
        for _ in range(3):
            self._runner.run(asyncio.sleep(0))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class Pauses:
    """A backoff that does not wait, and remembers how often it was asked."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, failures: int) -> float:
        self.count += 1
        return 0.0


@pytest.fixture(params=[Client, Face], ids=["blocking", "awaiting"])
def shell(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextmanager
def talking(shell: Any, *script: Any, **options: Any) -> Iterator[tuple[Any, ScriptedServer]]:
    with ScriptedServer(*script) as server:
        client = shell(server.url + "/", "shop", **{"backoff": Pauses(), **options})
        try:
            yield client, server
        finally:
            client.close()


def test_an_event_is_scheduled(shell: Any) -> None:
    with talking(shell, Answer(201, SCHEDULED), token="sesame") as (client, server):
        scheduled = client.schedule({"order": 17}, to="queue:q", in_=timedelta(minutes=20), key="k")
    assert (scheduled.id, scheduled.status, scheduled.version) == ("ev_1", "scheduled", 1)
    assert scheduled.at == datetime(2026, 11, 20, 10, 0, 0, 250_000, UTC)
    (asked,) = server.asked
    assert (asked.method, asked.target) == ("POST", "/v1/tenants/shop/events")
    assert asked.json == {"payload": {"order": 17}, "to": "queue:q", "in": "1200000ms", "key": "k"}
    assert asked.headers["authorization"] == "Bearer sesame"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["user-agent"].startswith("everbell/")


def test_a_path_before_the_api_is_kept_and_ids_are_escaped(shell: Any) -> None:
    with ScriptedServer(OK) as server:
        client = shell(server.url + "/bell/", "shop")
        client.get("a/b?c")
        client.close()
    assert server.asked[0].target == "/bell/v1/tenants/shop/events/a%2Fb%3Fc"


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get("\udcff"),
        lambda client: list(client.list(key="\udcff")),
        lambda client: client.look_at_key("\udcff"),
        lambda client: client.lease("\udcff"),
        lambda client: client.redrive(["\udcff"]),
        lambda client: client.add_pause("key", "\udcff"),
        lambda client: client.end_pause("key", "\udcff"),
        lambda client: client.drain("\udcff"),
        lambda client: client.revoke_key("\udcff"),
        lambda client: client.pause("ev_1", note="\udcff"),
        lambda client: client.schedule(1, to="queue:q", in_=1, id="\udcff"),
        lambda client: client.set_policy({"mode": "\udcff"}),
        lambda client: client.create_key(note="\udcff"),
        lambda client: client.fail("q", [Failure("1.1.1", "\udcff")]),
    ],
)
def test_invalid_text_is_refused_before_it_is_sent(shell: Any, ask: Callable[[Any], Any]) -> None:
    with talking(shell) as (client, _), pytest.raises(InvalidInput):
        ask(client)


def test_an_event_is_looked_at(shell: Any) -> None:
    with talking(shell, OK) as (client, _):
        event = client.get("ev_1")
    assert event.payload == {"order": 17}
    assert event.attempts[0].reason == "down"


def test_bytes_come_back_as_bytes(shell: Any) -> None:
    with talking(shell, Answer(200, BYTES), Answer(200, {"key": "k", "waiting": 1, "head": BYTES})) as (client, _):
        assert client.get("ev_1").payload == b"\x00\xff"
        assert client.look_at_key("k").head.payload == b"\x00\xff"


def test_a_payload_may_be_absent(shell: Any) -> None:
    finished = SCHEDULED | {"status": "delivered", "tenant": "shop", "to": "queue:q", "created_at": AT}
    with talking(shell, Answer(200, finished)) as (client, _):
        assert client.get("ev_1").payload is None


def test_a_number_that_python_cannot_read_hides_no_event(shell: Any) -> None:
    answers = (
        Answer(200, {"events": [EVENT, ODD, BYTES]}),
        Answer(200, ODD),
        Answer(200, {"key": "k", "waiting": 1, "head": ODD}),
    )
    with talking(shell, *answers) as (client, _):
        assert [event.payload for event in client.list()] == [{"order": 17}, {"order": inf}, b"\x00\xff"]
        assert client.get("ev_2").payload == {"order": inf}
        line = client.look_at_key("k")
    assert (line.key, line.waiting, line.more) == ("k", 1, False)
    assert (line.head.id, line.head.payload) == ("ev_2", {"order": inf})


def test_a_list_goes_on_while_there_is_a_cursor(shell: Any) -> None:
    pages = (
        Answer(200, {"events": [EVENT, EVENT], "cursor": "c 1"}),
        Answer(200, {"events": [], "cursor": "c2"}),
        Answer(200, {"events": [EVENT]}),
    )
    with talking(shell, *pages) as (client, server):
        events = list(client.list(status="dead", key="k&", from_=datetime(2026, 1, 1, tzinfo=UTC), limit=2))
    assert len(events) == 3
    first = "/v1/tenants/shop/events?status=dead&key=k%26&from=2026-01-01T00%3A00%3A00Z&limit=2"
    assert [asked.target for asked in server.asked] == [first, first + "&cursor=c+1", first + "&cursor=c2"]


def test_dead_events_are_listed(shell: Any) -> None:
    with talking(shell, Answer(200, {"events": [EVENT]})) as (client, server):
        assert [event.id for event in client.dead(tag="x")] == ["ev_1"]
    assert server.asked[0].target == "/v1/tenants/shop/dead?tag=x&limit=100"


def test_a_snooze_is_a_duration(shell: Any) -> None:
    with talking(shell, OK, OK) as (client, server):
        client.snooze("ev_1", by="10m", version=3)
        client.snooze("ev_1", by=timedelta(minutes=1))
    first, second = server.asked
    assert (first.method, first.target, first.json) == ("POST", "/v1/tenants/shop/events/ev_1/snooze", {"by": "10m"})
    assert first.headers["if-match"] == '"3"'
    assert second.json == {"by": "60000ms"}


def test_changes_name_their_version(shell: Any) -> None:
    with talking(shell, OK, OK, OK) as (client, server):
        client.change("ev_1", to="queue:r", tags=None, version=3)
        client.reschedule("ev_1", in_="5m")
        client.put("mine", 1, in_="5m", to="queue:q", version=2)
    changed, rescheduled, put = server.asked
    assert (changed.method, changed.json, changed.headers["if-match"]) == (
        "PATCH",
        {"to": "queue:r", "tags": None},
        '"3"',
    )
    assert (rescheduled.json, "if-match" in rescheduled.headers) == ({"in": "5m"}, False)
    assert (put.method, put.target, put.headers["if-match"]) == ("PUT", "/v1/tenants/shop/events/mine", '"2"')
    assert put.json == {"payload": 1, "in": "5m", "to": "queue:q"}


def test_many_are_cancelled_delivered_and_redriven(shell: Any) -> None:
    answers = (
        Answer(200, {"cancelled": 3}),
        OK,
        Answer(200, {"outcome": {"result": "failed", "code": 503}}),
        Answer(200, {"redriven": 1, "errors": []}),
        Answer(200, {"redriven": 2, "errors": []}),
        Answer(503, {"state": "starting"}),
    )
    with talking(shell, *answers) as (client, server):
        assert client.cancel_matching(key="k", tag="t") == 3
        assert client.deliver("ev_1").id == "ev_1"
        assert client.try_out("ev_1") == TrialOutcome("failed", None, 503)
        assert client.redrive(["ev_1"]) == Redriven(1, [])
        assert client.redrive_all(key="k").redriven == 2
        assert client.health().state == "starting"
    targets = [f"{asked.method} {asked.target}" for asked in server.asked]
    assert targets == [
        "DELETE /v1/tenants/shop/events?key=k&tag=t",
        "POST /v1/tenants/shop/events/ev_1/deliver",
        "POST /v1/tenants/shop/events/ev_1/deliver?dry_run=true",
        "POST /v1/tenants/shop/dead/redrive",
        "POST /v1/tenants/shop/dead/redrive",
        "GET /readyz",
    ]
    assert [asked.json for asked in server.asked[3:5]] == [{"ids": ["ev_1"]}, {"all": True, "key": "k"}]


def test_events_are_leased_and_settled(shell: Any) -> None:
    leased = {
        "lease": "1.1.1",
        "until": AT,
        "id": "ev_1",
        "occurrence": 2,
        "attempt": 3,
        "epoch": 4,
        "at": AT,
        "payload": {"order": 17},
        "headers": {"x-team": "orders"},
    }
    raw = leased | {"lease": "2.1.1", "payload_base64": "AP8=", "content_type": "image/png"}
    del raw["payload"]
    settled = Answer(200, {"done": 1, "lost": ["2.1.1"]})
    with talking(shell, Answer(200, {"events": [leased, raw]}), settled, settled, settled) as (client, server):
        first, second = client.lease("q", limit=2, wait="5s", lease=timedelta(seconds=30))
        assert client.ack("q", ["1.1.1"]) == Settled(1, ["2.1.1"])
        client.extend("q", ["1.1.1"], lease=30)
        client.fail("q", [Failure("1.1.1", "down", retry_after=0), Failure("2.1.1", "no", permanent=True)])
    assert isinstance(first, Lease)
    occurrence = first.occurrence
    assert (occurrence.id, occurrence.number, occurrence.attempt, occurrence.epoch) == ("ev_1", 2, 3, 4)
    assert (occurrence.tenant, occurrence.payload, occurrence.headers) == (
        "shop",
        {"order": 17},
        (("x-team", "orders"),),
    )
    assert first.until_at == occurrence.due_at == 1_795_168_800_250
    assert second.occurrence.payload == b"\x00\xff"
    lease, ack, extend, fail = server.asked
    assert lease.target == "/v1/tenants/shop/queues/q/lease"
    assert lease.json == {"limit": 2, "wait": "5s", "lease": "30000ms"}
    assert ack.json == {"leases": ["1.1.1"]}
    assert extend.json == {"leases": ["1.1.1"], "lease": 30}
    assert fail.json == {
        "leases": [
            {"lease": "1.1.1", "reason": "down", "retry_after": 0},
            {"lease": "2.1.1", "reason": "no", "permanent": True},
        ]
    }


def test_many_are_scheduled_in_batches(shell: Any) -> None:
    all_ok = Answer(201, {"accepted": 2, "rejected": 0, "ids": ["a", "b"], "errors": []})
    error = {"index": 0, "status": 422, "title": "T", "detail": "in: odd", "field": "in"}
    none = Answer(422, {"accepted": 0, "rejected": 1, "ids": [None], "errors": [error]})
    events = ({"payload": n, "in": "5s"} for n in range(3))
    with talking(shell, all_ok, none) as (client, server):
        batch = client.schedule_many(events, batch=2)
    assert batch.ids == ["a", "b", None]
    assert [(refusal.index, str(refusal.error)) for refusal in batch.refused] == [(2, "in: odd")]
    assert [asked.body.count(b"\n") + 1 for asked in server.asked] == [2, 1]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(404, "not-found", "there is no event"), NotFound),
        (problem(409, "conflict", "it is over"), Conflict),
        (problem(412, "version-mismatch", "it has version 4"), VersionMismatch),
        (problem(422, "invalid", "in: is odd", field="in"), InvalidInput),
    ],
)
def test_problems_become_errors(shell: Any, answer: Answer, kind: type[Exception]) -> None:
    with talking(shell, answer) as (client, _), pytest.raises(kind) as raised:
        client.cancel("ev_1")
    if isinstance(raised.value, InvalidInput):
        assert (raised.value.field, raised.value.reason) == ("in", "is odd")


def test_a_lost_answer_is_asked_for_again_when_that_is_safe(shell: Any) -> None:
    with talking(shell, HangUp(), problem(503, "overloaded", "full", **{"retry-after": 0}), OK) as (client, server):
        assert client.get("ev_1").id == "ev_1"
    assert len(server.asked) == 3


def test_scheduling_is_repeated_only_with_an_id(shell: Any) -> None:
    with talking(shell, HangUp(), Answer(200, SCHEDULED), HangUp()) as (client, server):
        assert client.schedule(1, to="queue:q", in_=1, id="mine").id == "ev_1"
        with pytest.raises(Unreachable, match="unknown; look before you repeat it, and give events an id"):
            client.schedule(1, to="queue:q", in_=1)
    assert [asked.json.get("id") for asked in server.asked] == ["mine", "mine", None]


def test_scheduling_is_repeated_with_a_key_of_its_own(shell: Any) -> None:
    accepted = Answer(201, {"accepted": 1, "rejected": 0, "ids": ["a"], "errors": []})
    script = (HangUp(), Answer(200, SCHEDULED), HangUp(), accepted, accepted)
    with talking(shell, *script) as (client, server):
        assert client.schedule(1, to="queue:q", in_=1, idempotency_key="k-1").id == "ev_1"
        events = [{"payload": n, "in_": 1, "to": "queue:q"} for n in range(2)]
        assert client.schedule_many(events, batch=1, idempotency_key="k-2").accepted == 2
        with pytest.raises(InvalidInput, match="idempotency_key"):
            client.schedule(1, to="queue:q", in_=1, idempotency_key="k\r\nx: y")
    keys = [asked.headers["idempotency-key"] for asked in server.asked]
    assert keys == ["k-1", "k-1", "k-2/0", "k-2/0", "k-2/1"]
    assert "idempotency_key" not in server.asked[0].json


def test_patience_has_an_end(shell: Any) -> None:
    pauses = Pauses()
    with (
        talking(shell, *[HangUp()] * 3, attempts_max=3, backoff=pauses) as (client, server),
        pytest.raises(Unreachable, match="gave no answer"),
    ):
        client.get("ev_1")
    assert (len(server.asked), pauses.count) == (3, 2)


def test_a_busy_server_is_believed_when_the_request_cannot_be_repeated(shell: Any) -> None:
    with (
        talking(shell, problem(503, "overloaded", "full", **{"retry-after": 9})) as (client, server),
        pytest.raises(Overloaded) as raised,
    ):
        client.schedule(1, to="queue:q", in_=1)
    assert raised.value.retry_after_s == 9
    assert len(server.asked) == 1


def test_a_repeated_cancel_after_a_lost_answer_succeeds(shell: Any) -> None:
    late = problem(409, "conflict", "the event is already cancelled")
    with talking(shell, HangUp(), late, Answer(200, EVENT | {"status": "cancelled"})) as (client, server):
        assert client.cancel("ev_1").status == "cancelled"
    assert [asked.method for asked in server.asked] == ["DELETE", "DELETE", "GET"]


def test_a_cancel_that_came_too_late_is_not_claimed(shell: Any) -> None:
    late = problem(409, "conflict", "the event is already delivered")
    with (
        talking(shell, HangUp(), late, Answer(200, EVENT | {"status": "delivered"})) as (client, _),
        pytest.raises(Conflict, match="already delivered"),
    ):
        client.cancel("ev_1")


def test_no_server_there(shell: Any, port: int) -> None:
    pauses = Pauses()
    client = shell(f"http://127.0.0.1:{port}", backoff=pauses)
    with pytest.raises(Unreachable, match=f"cannot reach http://127.0.0.1:{port}.*Nothing was sent"):
        client.schedule(1, to="queue:q", in_=1)
    client.close()
    assert pauses.count == 3


def test_a_server_that_says_nothing_is_given_up_at_the_deadline(shell: Any) -> None:
    with (
        talking(shell, Silence(), timeout_s=0.05) as (client, server),
        pytest.raises(Unreachable, match=r"within 0\.05 s"),
    ):
        client.get("ev_1")
    assert len(server.asked) <= 1, "it is not asked again; on a busy machine the time may be over before it was"


def test_a_connection_is_kept_and_one_that_the_server_closed_is_not_used(shell: Any) -> None:
    with talking(shell, OK, Answer(200, EVENT, then_close=True), Answer(201, SCHEDULED)) as (client, server):
        client.get("ev_1")
        client.get("ev_1")
        assert server.connections == 1
        server.wait_closed()
        if isinstance(client, Face):
            client.look_around()
        client.schedule(1, to="queue:q", in_=1)  # Not repeatable: it must not meet the dead connection.
        assert server.connections == 2


@pytest.mark.parametrize(
    ("url", "token", "says"),
    [
        ("bell:8420", None, "write http:// or https://"),
        ("http://bell/?x=1", None, "query"),
        ("http://bell", "two words", "token"),
        ("http://bell", "line\nbreak", "token"),
    ],
)
def test_a_wrong_address_is_refused_at_once(url: str, token: str | None, says: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidInput, match=says):
            kind(url, token=token)


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def surface(client: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(member))
            for name, member in inspect.getmembers(client, callable)
            if not name.startswith("_") and name not in ("run", "close")
        }

    assert surface(Client) == surface(AsyncClient)
    assert surface(Client)["get"] == "(self, id: 'str')"
    assert Client.list.__name__ == "list"
    assert "Schedule many events" in (Client.schedule_many.__doc__ or "")


def test_a_with_block_returns_the_client_with_its_own_class() -> None:
    class Ours(Client):
        pass

    class OursAwaiting(AsyncClient):
        pass

    async def main() -> None:
        async with OursAwaiting() as client:
            assert_type(client, OursAwaiting)

    with Ours() as client:
        assert_type(client, Ours)
    asyncio.run(main())


def test_threads_share_a_client() -> None:
    threads_count, each = 4, 5
    with ScriptedServer(*[OK] * (threads_count * each)) as server, Client(server.url) as client:
        found: list[str] = []

        def look() -> None:
            found.extend(client.get("ev_1").id for _ in range(each))

        threads = [threading.Thread(target=look) for _ in range(threads_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["ev_1"] * (threads_count * each)
    assert server.connections <= threads_count


def in_a_child(work: Callable[[], Any]) -> str:
    """The result or error of the work in a forked process; empty if it hangs."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads. Here these are the server's, which the child does not need.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(10)
            os.write(writes, str(work()).encode())
        except BaseException as error:
            os.write(writes, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as told:
        answer = told.read()
    os.waitpid(pid, 0)
    return answer


def test_a_child_process_has_connections_of_its_own() -> None:
    answers = [Answer(200, EVENT | {"id": id}) for id in ("before", "child", "parent")]
    with talking(Client, *answers) as (client, server):
        assert client.get("before").id == "before"
        assert in_a_child(lambda: client.get("child").id) == "child"
        assert server.connections == 2
        assert client.get("parent").id == "parent"
        assert server.connections == 2  # The child did not end that of its parent.


def test_a_child_process_waits_for_no_thread_of_its_parent() -> None:
    with talking(Client, HangUp(), OK) as (client, _):
        connections = client._connections
        with connections._lock, connections._closed._cond:
            assert in_a_child(lambda: client.get("ev_1").id) == "ev_1"


def test_a_client_closed_before_a_fork_stays_closed(port: int) -> None:
    client = Client(f"http://127.0.0.1:{port}", backoff=lambda failures: 3_600)
    client.close()
    assert in_a_child(lambda: client.get("ev_1")).startswith("Unreachable")


def test_a_client_of_the_loop_of_a_parent_process_is_refused() -> None:
    with talking(Face, OK, OK) as (face, server):
        face.get("ev_1")

        async def look() -> None:
            async with face._client as client:
                await client.get("ev_1")

        told = in_a_child(lambda: asyncio.run(look()))
        assert told.startswith(EverbellError.__name__)
        assert "make one of its own in each process" in told
        face.get("ev_1")
        assert (len(server.asked), server.connections) == (2, 1)


def test_a_closed_client_waits_for_nothing(port: int) -> None:
    client = Client(f"http://127.0.0.1:{port}", backoff=lambda failures: 3_600)
    client.close()
    with pytest.raises(Unreachable):
        client.get("ev_1")
