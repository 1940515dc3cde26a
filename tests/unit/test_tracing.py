"""Traces: an attempt links to the scheduling of its event, and the receiver gets the trace of the attempt."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from everbell.core.occurrence import Occurrence
from everbell.core.retry import DELIVERED, Outcome, RetryPolicy
from everbell.core.spec import Draft
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import Acknowledge, Get, GiveBack, LeaseEvents
from everbell.errors import EverbellError
from everbell.library import Everbell
from everbell.node.serve import serve
from everbell.node.settings import load
from everbell.node.tenant_tables import SettingsError
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from everbell.tracing import Tracing, context_of
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import Receiver, SteadyEntropy

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traced:
    """An engine with a tracer that keeps its spans."""

    def __init__(self, clock: VirtualClock, engine: Engine, receiver: Receiver, spans: InMemorySpanExporter) -> None:
        self.clock = clock
        self.engine = engine
        self.receiver = receiver
        self._spans = spans

    async def schedule(self, to: str = "https://shop.example/hook?token=x", trace: str | None = CALLER) -> None:
        draft = Draft(self.clock.now() + 100, to, b"{}", "one", traceparent=trace, retry=RetryPolicy(2, 1_000, 1_000))
        await schedule_seen(self.engine.ask, "shop", [draft])

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]


def traced(scene: Callable[[Traced], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: VirtualClock) -> None:
        spans, receiver = InMemorySpanExporter(), Receiver(clock)
        store = MemoryStore(4)
        tracing = Tracing(SimpleSpanProcessor(spans), "n1")
        engine = await Engine.start(store, {"https": receiver}, Tenants(), clock, SteadyEntropy(), tracing=tracing)
        await scene(Traced(clock, engine, receiver, spans))
        await engine.stop()
        tracing.close()

    run_virtual(main)


def test_attempts_link_to_the_scheduling_which_belongs_to_the_request() -> None:
    async def scene(stage: Traced) -> None:
        stage.receiver.answer = lambda delivery: Outcome("failed", "busy", 503) if delivery.attempt == 1 else DELIVERED
        await stage.schedule()
        await asyncio.sleep(5)
        (scheduling,) = stage.named("everbell.schedule")
        caller = context_of(CALLER)
        assert caller is not None
        assert scheduling.parent is not None
        assert (scheduling.parent.span_id, scheduling.context.trace_id) == (caller.span_id, caller.trace_id)
        failed, delivered = stage.named("everbell.deliver")
        for number, span in enumerate((failed, delivered), 1):
            attributes = span.attributes or {}
            assert span.parent is None
            assert [link.context.span_id for link in span.links] == [scheduling.context.span_id]
            assert attributes["everbell.tenant"] == "shop"
            assert attributes["everbell.id"] == "one"
            assert attributes["everbell.occurrence"] == 1
            assert attributes["everbell.attempt"] == number
            assert attributes["everbell.target"] == "https://shop.example/hook", "a query may hold secrets"
            assert attributes["everbell.lateness_ms"] == 0
            sent = context_of(stage.receiver.got[number - 1].event.traceparent)
            assert sent is not None
            assert sent.span_id == span.context.span_id, "the receiver gets the attempt's own context"
        assert (failed.attributes or {})["everbell.result"] == "failed"
        assert (failed.attributes or {})["http.response.status_code"] == 503
        assert failed.status.status_code is StatusCode.ERROR
        assert (delivered.attributes or {})["everbell.result"] == "delivered"

    traced(scene)


def test_the_event_stores_the_span_of_its_scheduling() -> None:
    async def scene(stage: Traced) -> None:
        await stage.schedule(trace=None)
        (scheduling,) = stage.named("everbell.schedule")
        assert scheduling.parent is None
        seen = await stage.engine.ask(Get("shop", "one"))
        stored = context_of(getattr(seen.event, "traceparent", None))
        assert stored is not None
        assert stored.span_id == scheduling.context.span_id
        await stage.schedule(trace=CALLER)
        assert len(stage.receiver.got) == 0
        assert (await stage.engine.ask(Get("shop", "one"))).status == "scheduled", "a repeated request is none more"

    traced(scene)


def test_a_worker_gets_the_trace_of_its_attempt_and_a_returned_lease_leaves_no_span() -> None:
    async def scene(stage: Traced) -> None:
        await stage.schedule("queue:mail")
        ask = stage.engine.ask
        (first,) = await ask(LeaseEvents("shop", "mail", 1, 1_000, 1_000))
        await ask(GiveBack("shop", "mail", [first.token]))
        assert stage.named("everbell.deliver") == []
        (lease,) = await ask(LeaseEvents("shop", "mail", 1, 1_000, 1_000))
        await ask(Acknowledge("shop", "mail", [lease.token]))
        (span,) = stage.named("everbell.deliver")
        sent = context_of(lease.occurrence.traceparent)
        assert sent is not None
        assert sent.span_id == span.context.span_id

    traced(scene)


@pytest.mark.parametrize("text", [None, f"00-{'0' * 32}-{'0' * 16}-00"])
def test_no_context_is_no_link(text: str | None) -> None:
    assert context_of(text) is None


def test_a_program_traces_the_events_that_it_schedules_and_handles() -> None:
    spans = InMemorySpanExporter()
    program = TracerProvider(shutdown_on_exit=False)
    tracing = Tracing(SimpleSpanProcessor(spans), "shop")

    async def main() -> str | None:
        handled: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        bell = Everbell(MemoryStore(4), tracing=tracing)

        @bell.on("mail")
        async def send(event: Occurrence) -> None:
            handled.set_result(event.traceparent)

        async with bell:
            with program.get_tracer("shop").start_as_current_span("checkout"):
                await bell.schedule({"user": 7}, to="handler:mail", in_="0s")
            return await asyncio.wait_for(handled, 20)

    seen = asyncio.run(main())
    tracing.close()
    schedule, deliver = sorted(spans.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert (schedule.name, deliver.name) == ("everbell.schedule", "everbell.deliver")
    assert schedule.parent is not None, "the program's own span"
    assert schedule.context is not None
    assert deliver.context is not None
    assert [link.context.span_id for link in deliver.links] == [schedule.context.span_id]
    assert seen is not None
    assert f"{deliver.context.trace_id:032x}-{deliver.context.span_id:016x}" in seen


def test_without_the_extra_a_program_is_told_which_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "everbell.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)

    async def main() -> None:
        await Everbell(MemoryStore(4), tracing="http://127.0.0.1:4318").start()

    with pytest.raises(EverbellError, match=r"pip install 'everbell\[otel\]'"):
        asyncio.run(main())


def test_without_the_extra_the_setting_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "everbell.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(SettingsError, match=r"pip install 'everbell\[otel\]'"):
        serve(load({"store": "memory:", "otlp": "http://127.0.0.1:4318"}, {}, None))
