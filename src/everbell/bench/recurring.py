"""Recurring events: the time of a preview, and the memory of many of them."""

from __future__ import annotations

from http.client import HTTPConnection
from time import perf_counter

import msgspec
from msgspec.structs import replace

from everbell.bench.dialogue import PATIENCE_S, BenchFailed
from everbell.bench.figures import Baseline, Figure, percentile
from everbell.bench.goals import PREVIEW, RECURRING
from everbell.bench.scene import HOUR_MS, Scene, batches, load_plan, now_ms, rest, send
from everbell.bench.stage import BenchStage

_EXPRESSIONS = (
    ("* * * * * *", "UTC"),
    ("*/5 * * * *", "Europe/Berlin"),
    ("0 9 * * MON-FRI", "America/New_York"),
    ("30 2 1,15 * *", "Australia/Lord_Howe"),
    ("0 0 L * *", "Europe/Berlin"),
    ("0 8 * * MON#2", "Asia/Tokyo"),
)
_TIMES = 1_000
_REPEATED = 20
_CRON = "0 9 * * MON-FRI"
_LOADERS = 4
_ROUNDS = 3


def preview(scene: Scene) -> list[Figure]:
    """Ask for the next thousand times, again and again, over one connection; the best of each expression counts."""
    tell = scene.progress("previewing", len(_EXPRESSIONS))
    taken_ms: dict[str, list[float]] = {}
    with BenchStage() as stage:
        _, port = stage.server(gateways=scene.few_gateways, store="memory:")
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for number, (cron, tz) in enumerate(_EXPRESSIONS, 1):
            taken_ms[f"{cron} in {tz}"] = [_ask(connection, cron, tz, _TIMES) for _ in range(_REPEATED)]
            tell(number)
        one_ms = min(_ask(connection, *_EXPRESSIONS[0], 1) for _ in range(_REPEATED))
        connection.close()
    notes = [
        f"{name}: best {min(each):.1f} ms, median {percentile(sorted(each), 0.5):.1f} ms"
        for name, each in taken_ms.items()
    ]
    baseline = Baseline("the same request for one time", one_ms)
    return [Figure(PREVIEW, max(map(min, taken_ms.values())), (baseline,), notes=tuple(notes))]


def _ask(connection: HTTPConnection, cron: str, tz: str, count: int) -> float:
    """The duration of one preview in milliseconds."""
    body = msgspec.json.encode({"repeat": {"cron": cron, "tz": tz}, "count": count})
    started_s = perf_counter()
    connection.request("POST", "/v1/preview", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    told = answer.read()
    taken_ms = (perf_counter() - started_s) * 1_000
    if answer.status != 200 or told.count(b'"number"') != count:
        raise BenchFailed(f"a preview of {cron} was answered with {answer.status} {told[:200].decode()}")
    return taken_ms


def recurring(scene: Scene) -> list[Figure]:
    """Memory of an idle server with many recurring events, beside one with as many single events.

    The two alternate, and the least of each counts, because the state of RocksDB's buffers varies.
    """
    count, size = batches(scene.scale.recurring)
    once_mb: list[float] = []
    again_mb: list[float] = []
    for _ in range(_ROUNDS):
        once_mb.append(_loaded_mb(scene, "", count, size))
        again_mb.append(_loaded_mb(scene, _CRON, count, size))
    goal = RECURRING.titled(count=f"{count * size:,}")
    baseline = Baseline("as many that come once", min(once_mb))
    notes = (f"rounds: that come again {_listed(again_mb)}; once {_listed(once_mb)}",)
    return [Figure(goal, min(again_mb), (baseline,), rss_mb=min(again_mb), notes=notes)]


def _listed(all_mb: list[float]) -> str:
    return ", ".join(f"{each:.0f} MB" for each in all_mb)


def _loaded_mb(scene: Scene, cron: str, count: int, size: int) -> float:
    with BenchStage() as stage:
        server, port = stage.server(gateways=scene.few_gateways)
        plan = load_plan(port, "queue:later", size, _LOADERS, due_from=now_ms() + HOUR_MS, due_span_ms=HOUR_MS)
        load = stage.load(replace(plan, cron=cron))
        send(load, count, scene.progress("storing" + (" recurring ones" if cron else ""), count * size))
        rest(scene.scale.idle_s)
        return server.usage().rss_bytes / 1e6
