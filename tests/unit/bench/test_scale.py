from __future__ import annotations

from everbell.bench.scale import QUICK, Scale, scale_of
from everbell.bench.scene import batches


def test_quick_is_smaller_in_everything() -> None:
    quick, whole = scale_of(quick=True, events=None), scale_of(quick=False, events=None)

    assert (quick, whole) == (QUICK, Scale())
    assert quick.pending_many * 10 == whole.pending_many
    assert quick.herd * 10 == whole.herd


def test_a_number_of_events_counts_for_everything() -> None:
    scale = scale_of(quick=True, events=2_000)

    assert {scale.ingest, scale.single, scale.late, scale.herd, scale.pending_many} == {2_000}
    assert (scale.pending_few, scale.replica_few) == (200, 200)


def test_batches_are_whole_and_never_larger_than_requested() -> None:
    assert batches(1_000_000) == (1_000, 1_000)
    assert batches(2_500) == (2, 1_000)
    assert batches(30) == (1, 30)
    assert batches(1) == (1, 1)
