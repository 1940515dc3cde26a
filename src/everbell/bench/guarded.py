"""The cost of access keys, quotas and signatures together: the same events in and out, with and without them.

Both variants alternate, and the best round of each counts, so that other load on the machine does not decide.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from everbell.bench.delivery import received, started_receiver
from everbell.bench.figures import Baseline, Figure, per_event_us
from everbell.bench.goals import GUARDED, GUARDED_SHARE
from everbell.bench.plans import ReceiverOrder
from everbell.bench.scene import Scene, load_plan, now_ms, send
from everbell.bench.stage import BenchStage
from everbell.clock import wall_ns

_CONNECTIONS = 64
_PREPARED = 1_000
_ROUNDS = 3
_WARM_UP = 20
_POLICY = """\
bootstrap_key = "{key}"
allow_targets = "127.0.0.0/8"
[defaults]
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
limits = {{ rate = 1000000, pending = 1000000000 }}
"""


class _Round(Struct, frozen=True):
    rate: float
    cpu_us: float
    rss_mb: float


def guarded(scene: Scene) -> list[Figure]:
    """One POST per event, due at once, delivered by a POST: every check happens for each event."""
    with_all: list[_Round] = []
    without: list[_Round] = []
    for _ in range(_ROUNDS):
        without.append(_round(scene, guards=False))
        with_all.append(_round(scene, guards=True))
    best, bare = max(with_all, key=_rate), max(without, key=_rate)
    baseline = Baseline("the same without any of them", bare.rate)
    rounds = f"rounds: with {_listed(with_all)}; without {_listed(without)}"
    # Other work on the machine changes rates by more than a tenth, so CPU time is compared, too.
    least_us, bare_us = (min(each.cpu_us for each in all_rounds) for all_rounds in (with_all, without))
    cost = f"with them {least_us:.1f} µs CPU an event, without {bare_us:.1f}, the least of all rounds"
    return [
        Figure(GUARDED, best.rate, (baseline,), best.cpu_us, best.rss_mb, notes=(rounds,)),
        Figure(GUARDED_SHARE, bare_us / least_us, cpu_us=least_us, notes=(cost,)),
    ]


def _round(scene: Scene, *, guards: bool) -> _Round:
    events = scene.scale.guarded
    with BenchStage() as stage:
        receiver, receiver_port = started_receiver(stage, lateness=False)
        directory = stage.directory()
        key = directory / "key"
        server, port = stage.server(
            directory, gateways=scene.few_gateways, config=_POLICY.format(key=key) if guards else ""
        )
        token = _token(key) if guards else ""
        plan = load_plan(port, f"http://127.0.0.1:{receiver_port}/bell", 1, _CONNECTIONS, due_from=now_ms())
        load = stage.load(replace(plan, prepared=_PREPARED, token=token))
        warm = max(events // _WARM_UP, 1)
        send(load, warm, lambda done: None)
        received(receiver, ReceiverOrder({"/bell": warm}), scene, "warming up")
        before, started_ns = server.usage(), wall_ns()
        send(load, events, scene.progress("with all checks" if guards else "without checks", events))
        came = received(receiver, ReceiverOrder({"/bell": events}), scene, "delivering")["/bell"]
        after = server.usage()
    rate = events / max((came.last_ns - started_ns) / 1e9, 1e-3)
    return _Round(rate, per_event_us(after.cpu_s - before.cpu_s, events), after.rss_bytes / 1e6)


def _token(path: Path) -> str:
    return path.read_text().strip()


def _rate(each: _Round) -> float:
    return each.rate


def _listed(rounds: list[_Round]) -> str:
    return ", ".join(f"{each.rate:,.0f}/s and {each.cpu_us:.0f} µs" for each in rounds)
