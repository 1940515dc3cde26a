"""Features of stored events that events of replicas have as well: the same results, whichever node is asked."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from everbell.channels.handler import HandlerChannel
from everbell.core.batch_item import BatchItem, ItemDone
from everbell.core.event import Repeat
from everbell.core.occurrence import Occurrence
from everbell.core.pause import Pause
from everbell.core.replicas.copies import REPLICA_FORMAT
from everbell.core.retry import Outcome, RetryPolicy
from everbell.core.tenant import Limits, Tenant
from everbell.engine.engine import Engine
from everbell.engine.replica_requests import HoldCopies
from everbell.engine.requests import (
    ApplyItems,
    CancelMatching,
    CountEvents,
    Find,
    GetForecast,
    RedriveMatching,
    Schedule,
    TryOut,
)
from everbell.engine.tally import DELIVERED, SCHEDULED
from everbell.engine.view_requests import Explain, GetPast, GetTargets
from everbell.entropy import SeededEntropy
from everbell.errors import Overloaded, Throttled
from everbell.replicas.node_views import NodeViews
from everbell.stores.memory.store import MemoryStore
from everbell.stores.port import Filter
from everbell.tracing import Tracing, context_of
from tests.simulation.replica_town import TENANT, Town, draft_at, run_town

FAILED = Outcome("failed", "not now", 503)


def test_recurrence_ends_by_count_and_by_time() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        first_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(first_at, id="count", repeat=Repeat(5_000, count=3)))
        await town.schedule("b", draft_at(first_at, id="until", repeat=Repeat(5_000, until_at=first_at + 6_000)))
        await town.until(first_at + 120_000)
        rings = sorted((rang.id, rang.occurrence, rang.at - first_at) for rang in town.rang)
        assert rings == [
            ("count", 1, 0),
            ("count", 2, 5_000),
            ("count", 3, 10_000),
            ("until", 1, 0),
            ("until", 2, 5_000),
        ]
        for event_id in ("count", "until"):
            assert (await town.get("c", event_id)).status == "delivered"

    run_town(story)


def test_an_event_that_is_too_late_expires_on_all_replicas() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x", expires_ms=30_000))
        hold_all(town, Pause(TENANT, "tenant", "", 0, "nobody"))
        await town.until(due_at + 60_000)
        assert town.rang == []
        hold_all(town)
        await town.until(due_at + 90_000)
        assert town.rang == []
        assert (await town.get("b", "x")).status == "expired"

    run_town(story)


def hold_all(town: Town, *pauses: Pause) -> None:
    """Let all nodes follow these pauses, as if they had played the log."""
    for node in town.nodes.values():
        node.replicas.engine.pauses.follow(pauses)


def test_a_pause_holds_all_replicas_back_and_is_the_reason() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x"))
        hold_all(town, Pause(TENANT, "target", "https://receiver.example:443", 0, "nobody", "moving"))
        await town.until(due_at + 60_000)
        assert town.rang == []
        for node in town.nodes.values():
            explained = await node.replicas.ask(Explain(TENANT, "x"))
            assert explained.why is not None
            assert (explained.why.code, explained.why.note) == ("paused", "moving")
        hold_all(town)
        await town.until(due_at + 90_000)
        assert len(town.rang) == 1

    run_town(story)


def test_quotas_count_the_events_of_all_nodes_once() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d", "e")
        due_at = town.clock.now() + 600_000
        results = []
        for number in range(14):
            results.append(await town.schedule("abcde"[number % 5], draft_at(due_at)))
            await town.until(town.clock.now() + 1_100)
        assert [isinstance(result, str) for result in results] == [True] * 10 + [False] * 4
        assert all(isinstance(result, Throttled) for result in results[10:])

    run_town(story, tenant=Tenant(limits=Limits(pending=10)))


def test_search_counts_and_forecast_list_each_event_once_also_without_one_node() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d")
        due_at = town.clock.now() + 600_000
        tags: dict[str, Any] = {"tags": ("red",)}
        ids = [str(await town.schedule("a", draft_at(due_at, **(tags if n % 2 else {})))) for n in range(30)]
        for nodes in (("a", "b", "c", "d"), ("a", "b", "c")):
            for name in nodes:
                ask = town.nodes[name].replicas.ask
                assert sorted(await found(town, name, Filter(TENANT))) == sorted(ids)
                assert len(await found(town, name, Filter(TENANT, tag="red"))) == 15
                assert (await ask(CountEvents()))[TENANT].pending == 30
                assert sum((await ask(GetForecast(TENANT, 60_000, 20))).due) == 30
            if "d" in nodes:
                await town.kill("d")
        town.know_all()
        await town.until(town.clock.now() + 20_000)
        assert await town.nodes["b"].replicas.ask(CancelMatching(Filter(TENANT, tag="red"))) == 15
        assert (await town.nodes["c"].replicas.ask(CountEvents()))[TENANT].pending == 15

    run_town(story)


async def found(town: Town, node: str, wanted: Filter) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await town.nodes[node].replicas.ask(Find(wanted, cursor, 7))
        ids += [seen.event.id for seen in page]
        if cursor is None:
            return ids


def test_dead_events_are_found_and_redriven_together() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        town.answer = lambda rang: (Outcome("refused", "never", 400), 0.01)
        due_at = town.clock.now() + 10_000
        ids = [str(await town.schedule("a", draft_at(due_at))) for _ in range(12)]
        await town.until(due_at + 10_000)
        assert sorted(await found(town, "b", Filter(TENANT, "dead"))) == sorted(ids)
        town.answer = lambda rang: (Outcome("delivered"), 0.01)
        assert await town.nodes["c"].replicas.ask(RedriveMatching(Filter(TENANT, "dead"))) == 12
        await town.until(due_at + 60_000)
        assert sorted(await found(town, "a", Filter(TENANT, "delivered"))) == sorted(ids)

    run_town(story)


def test_mixed_batches_create_replace_and_cancel() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        await town.until(town.clock.now() + 10_000)  # A node that has just started cannot say that there is no event.
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="old"))
        items = [
            BatchItem("create", None, draft_at(due_at)),
            BatchItem("put", "new", draft_at(due_at, id="new")),
            BatchItem("put", "old", draft_at(due_at + 5_000, id="old")),
            BatchItem("cancel", "new"),
            BatchItem("cancel", "none"),
        ]
        results = await town.nodes["b"].replicas.ask(ApplyItems(TENANT, items))
        done = [result.status for result in results if isinstance(result, ItemDone)]
        assert done == ["created", "created", "replaced", "cancelled", "unknown"]
        await town.until(due_at + 60_000)
        assert sorted(rang.at - due_at for rang in town.rang) == [0, 5_000]

    run_town(story)


def test_a_dry_run_changes_nothing() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 60_000
        await town.schedule("a", draft_at(due_at, id="x"))
        for node in town.nodes.values():
            outcome = await node.replicas.ask(TryOut(TENANT, "x"))
            assert outcome.result == "delivered"
        assert (await town.get("b", "x")).status == "scheduled"

    run_town(story)


def test_handlers_get_events_and_their_failures_are_retried() -> None:
    async def story(town: Town) -> None:
        got: list[Occurrence] = []

        async def remind(occurrence: Occurrence) -> None:
            got.append(occurrence)
            if len(got) == 1:
                raise ValueError("not yet")

        channel = HandlerChannel()
        channel.register("remind", remind)
        town.more_channels["handler"] = channel
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        retry = RetryPolicy(3, 1_000, 1_000)
        await town.schedule("a", draft_at(due_at, id="x", to="handler:remind", retry=retry))
        await town.until(due_at + 30_000)
        assert [each.attempt for each in got] == [1, 2]
        assert (await town.get("c", "x")).status == "delivered"
        await channel.close()

    run_town(story)


def test_an_event_has_one_span_for_its_scheduling_and_one_for_each_attempt() -> None:
    spans = InMemorySpanExporter()

    async def story(town: Town) -> None:
        town.tracing = Tracing(SimpleSpanProcessor(spans), "town")
        town.answer = lambda rang: (Outcome("delivered") if rang.attempt > 1 else FAILED, 0.01)
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 10_000
        retry = RetryPolicy(3, 1_000, 1_000)
        caller = f"00-{7:032x}-{5:016x}-01"
        await town.schedule("a", draft_at(due_at, id="x", retry=retry, traceparent=caller))
        await town.until(due_at + 30_000)

    run_town(story)
    named = {
        name: [span for span in spans.get_finished_spans() if span.name == f"everbell.{name}"]
        for name in ("schedule", "deliver")
    }
    (scheduling,) = named["schedule"]
    assert scheduling.parent is not None
    assert (scheduling.parent.trace_id, scheduling.parent.span_id) == (7, 5)
    assert (scheduling.attributes or {})["everbell.id"] == "x"
    assert len(named["deliver"]) == 2
    for attempt in named["deliver"]:
        (link,) = attempt.links
        assert link.context.span_id == scheduling.context.span_id
    assert context_of(None) is None


def test_many_events_count_once_in_the_history_of_all_nodes() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d")
        due_at = town.clock.now() + 5_000
        (far,) = await town.nodes["a"].replicas.ask(Schedule(TENANT, [draft_at(due_at + 600_000)]))
        assert isinstance(far, str)
        await town.nodes["b"].replicas.ask(Schedule(TENANT, [draft_at(due_at) for _ in range(20)]))
        await town.until(due_at + 60_000)
        request = GetPast(TENANT, "minutes")
        past = request.merged([await (await views(node)).ask(request) for node in town.nodes.values()], ())
        counts = [sum(column) for column in zip(*(sample.counts for sample in past.samples), strict=True)]
        assert (counts[SCHEDULED], counts[DELIVERED]) == (21, 20)
        assert (past.now.pending, past.now.held_pending) == (0, 1)
        targets = await (await views(town.nodes["a"])).ask(GetTargets(TENANT))
        assert [target.target for target in targets.targets] == ["https://receiver.example:443"]

    async def views(node: Any) -> NodeViews:
        holder = node.replicas.holder
        engine = await Engine.start(MemoryStore(4), {}, holder.engine.tenants, node.clock, SeededEntropy(1))
        return NodeViews(holder, node.members, engine.ask)

    run_town(story)


def test_the_holders_of_an_event_are_named_in_the_order_of_their_turns() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c", "d")
        town.answer = lambda rang: (FAILED, 0.01)
        due_at = town.clock.now() + 10_000
        await town.schedule("a", draft_at(due_at, id="x", retry=RetryPolicy(5, 20_000, 20_000)))
        line = town.nodes["a"].members.roster.replicas_of("x", 3)
        assert (await town.get("d", "x")).holders == line
        await town.until(due_at + 5_000)
        seen = await town.get("b", "x")
        assert (seen.status, seen.holders) == ("retrying", (line[1], line[2], line[0]))

    run_town(story)


def test_nodes_of_another_format_take_no_copies_and_the_answer_says_so() -> None:
    async def story(town: Town) -> None:
        await town.found("a", "b", "c")
        due_at = town.clock.now() + 20_000
        before = str(await town.schedule("a", draft_at(due_at)))
        members = town.nodes["a"].members
        ask, strangers = members.ask, {"b"}

        async def ask_in_another_format(name: str, request: Any) -> Any:
            is_changed = name in strangers and isinstance(request, HoldCopies)
            return await ask(name, replace(request, format=REPLICA_FORMAT + 1) if is_changed else request)

        members.ask = ask_in_another_format  # type: ignore[method-assign]
        with_one = await town.schedule("a", draft_at(due_at))
        assert isinstance(with_one, str), "the majority has the same format"
        strangers.add("c")
        refused = await town.schedule("a", draft_at(due_at))
        assert isinstance(refused, Overloaded)
        assert "held by 1 of 3" in str(refused)
        assert f"in format {REPLICA_FORMAT}, not {REPLICA_FORMAT + 1}: run one version on all nodes" in str(refused)
        await town.until(due_at + 60_000)
        assert {before, with_one} == {rang.id for rang in town.rang}

    run_town(story)
