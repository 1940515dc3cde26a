"""The events of replicas in the metrics, and as people see them."""

from __future__ import annotations

import pytest

from everbell.cli.status import print_replicas
from everbell.cli.terminal import Paint
from everbell.client.samples import read_samples
from everbell.core.cluster.view import ReplicasView
from everbell.node.replica_metrics import render_replicas
from tests.unit.node.test_metrics import values

VIEW = ReplicasView(
    held=30,
    held_by_rank={0: 10, 1: 20},
    started_by_rank={0: 5, 2: 1},
    duplicates=2,
    tombstones=4,
    forgotten_early=0,
    held_bytes=3_000_000,
    cap_bytes=10_000_000,
    resync_left=7,
    resync_ms=1_500,
    resync_sent=3,
    given_away=8,
    behind=("b",),
    settled=False,
    refilled=True,
)


def test_all_figures_are_metrics() -> None:
    text = "\n".join(render_replicas(VIEW))
    numbers = {name.removeprefix("everbell_replicas_"): value for name, value in values(text).items()}
    assert numbers == {
        'held_events{rank="0"}': 10,
        'held_events{rank="1"}': 20,
        'started_total{rank="0"}': 5,
        'started_total{rank="2"}': 1,
        "duplicates_total": 2,
        "tombstones": 4,
        "forgotten_early_total": 0,
        "bytes": 3_000_000,
        "bytes_max": 10_000_000,
        "resync_left_events": 7,
        "resync_seconds": 1.5,
        "resync_sent_total": 3,
        "given_away_total": 8,
        "nodes_behind": 1,
        "settled": 0,
        "refilled": 1,
    }
    samples = read_samples(text)
    assert samples.total("everbell_replicas_held_events") == 30
    assert samples.total("everbell_replicas_nothing") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "resync for 1.5 s, 7 left"),
        ({"resync_left": 0, "resync_ms": 0}, "behind: b"),
        ({"resync_left": 0, "resync_ms": 0, "behind": ()}, "a resync is due"),
        ({"resync_left": 0, "resync_ms": 0, "behind": (), "settled": True}, "in step with the other nodes"),
        ({"forgotten_early": 9}, "9 ends were forgotten early"),
    ],
)
def test_people_see_held_events_by_rank_memory_and_resync(
    changes: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {name: getattr(VIEW, name) for name in VIEW.__struct_fields__} | changes
    print_replicas(ReplicasView(**fields), Paint())
    shown = capsys.readouterr().out
    assert "30 held (by rank: 0: 10, 1: 20), 3.0 of 10.0 MB, 4 tombstones" in shown
    assert "attempts 6 (by rank: 0: 5, 2: 1), 2 duplicates" in shown
    assert words in shown
