"""What one tenant, or a stranger, can do to the others: each attack beside another tenant's steady events.

Four figures: the longest wait for the server's event loop, the other tenant's lateness compared with a run without an
attack, the memory, and the open files. The worst attack counts, and the notes have all of them.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from everbell.bench.attacks import ATTACKS
from everbell.bench.delivery import received, started_receiver
from everbell.bench.dialogue import BenchFailed
from everbell.bench.figures import Baseline, Figure, Lateness
from everbell.bench.goals import ABUSE_BLOCK, ABUSE_FILES, ABUSE_LATE, ABUSE_MEMORY
from everbell.bench.plans import AttackPlan, PingPlan, ReceiverOrder
from everbell.bench.scene import Scene, load_plan, now_ms, rest_until, send
from everbell.bench.stage import BenchStage
from everbell.bench.usage import family_of

_RATE_S = 500
_AHEAD_MS = 1_500
_PING_S = 0.004
_SETTINGS = """\
bootstrap_key = "{key}"
allow_targets = "127.0.0.0/8"
[tenants.greedy]
limits = {{ pending = 100000 }}
"""


class _Run(Struct, frozen=True):
    calm: Lateness
    waits: Lateness
    peak_mb: float
    files: int
    times: int


def abuse(scene: Scene) -> list[Figure]:
    """One run without an attack, then one for each attack, each with a server of its own."""
    alone = _run(scene, None)
    runs = {name: _run(scene, name) for name in ATTACKS}
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    notes = tuple(
        f"{name}: waits p99 {run.waits.p99_ms:.1f} ms, at most {run.waits.max_ms:.1f} ms; lateness p99 "
        f"{run.calm.p99_ms:.1f} ms, at most {run.calm.max_ms:.1f} ms; {run.peak_mb:.0f} MB; {run.files} files; made "
        f"{run.times} times"
        for name, run in runs.items()
    )
    worst = max(runs.values(), key=lambda run: run.calm.p99_ms)
    return [
        Figure(
            ABUSE_BLOCK,
            max(run.waits.max_ms for run in runs.values()),
            (Baseline("the same without an attack", alone.waits.max_ms),),
            notes=notes,
        ),
        Figure(
            ABUSE_LATE,
            worst.calm.p99_ms / alone.calm.p99_ms,
            lateness=worst.calm,
            notes=(f"without an attack: p50 {alone.calm.p50_ms:.2f} ms, p99 {alone.calm.p99_ms:.2f} ms",),
        ),
        Figure(ABUSE_MEMORY, max(run.peak_mb for run in runs.values()), (Baseline("without", alone.peak_mb),)),
        Figure(ABUSE_FILES, max(run.files for run in runs.values()) / limit, notes=(f"the limit is {limit:,}",)),
    ]


def _run(scene: Scene, attack: str | None) -> _Run:
    events = scene.scale.abuse
    with BenchStage() as stage:
        receiver, receiver_port = started_receiver(stage, lateness=True)
        directory = stage.directory()
        key = directory / "key"
        server, port = stage.server(directory, gateways=scene.few_gateways, config=_SETTINGS.format(key=key))
        token = key.read_text().strip()
        due = now_ms() + _AHEAD_MS
        span_ms = events * 1_000 // _RATE_S
        plan = load_plan(
            port, f"http://127.0.0.1:{receiver_port}/bell", events, 1, tenant="calm", due_from=due, due_span_ms=span_ms
        )
        load = stage.load(replace(plan, in_order=True, prepared=1, token=token))
        send(load, 1, lambda done: None)
        pings = stage.partner("everbell.bench.pings", PingPlan(port, _PING_S))
        pings.hear()
        rest_until(due)
        attacker = None
        if attack is not None:
            attacker = stage.partner("everbell.bench.attacks", AttackPlan(attack, port, token, span_ms / 1_000))
            attacker.hear()
        came = received(receiver, ReceiverOrder({"/bell": events}), scene, attack or "without an attack")["/bell"]
        pings.tell({})
        waits = msgspec.convert(pings.hear(), Lateness)
        times = 0 if attacker is None else int(attacker.hear()["times"])
        usage, files = server.usage(), _files(server.process.pid)
    if came.lateness is None:
        raise BenchFailed("no event with a known lateness arrived")
    return _Run(came.lateness, waits, usage.peak_bytes / 1e6, files, times)


def _files(pid: int) -> int:
    """The open files of the server's process with the most."""
    return max(len(os.listdir(Path(f"/proc/{each}/fd"))) for each in family_of(pid))
