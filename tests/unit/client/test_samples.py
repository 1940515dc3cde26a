"""Reading a server's metrics back."""

from __future__ import annotations

from math import inf

import pytest

from everbell.client.samples import Samples, read_samples
from everbell.core.exposition import labelled, metric

LATE = "everbell_lateness_seconds"


def histogram(**counts: int) -> Samples:
    """Cumulative counts by bound, as in `le0_001=3, inf=5`."""
    bounds = {name: name.removeprefix("le").replace("_", ".").replace("inf", "+Inf") for name in counts}
    return Samples({f'{LATE}_bucket{{le="{bounds[name]}"}}': count for name, count in counts.items()})


def test_samples_are_read_by_name_and_labels() -> None:
    text = "\n".join(
        [
            *metric("everbell_scheduled_total", "counter", "Events.", 17),
            *labelled("everbell_cluster_owned_partitions", "gauge", "By owner.", "node", {"n1": 86, "n2": 85}),
            *metric("everbell_cluster_lease_left_seconds", "gauge", "Left.", 1.25),
        ]
    )
    samples = read_samples(text)
    assert samples.value("everbell_scheduled_total") == 17
    assert samples.value('everbell_cluster_owned_partitions{node="n2"}') == 85
    assert samples.value("everbell_cluster_lease_left_seconds") == 1.25
    assert samples.value("nothing") == 0


def test_unreadable_lines_are_left_out() -> None:
    assert read_samples("what is this\n\n# a comment\nup 1\nup{").value("up") == 1


@pytest.mark.parametrize(("share", "told"), [(0.5, 0.001), (0.9, 0.01), (0.99, inf)])
def test_a_quantile_is_the_bound_that_it_lies_below(share: float, told: float) -> None:
    assert histogram(le0_001=60, le0_01=95, inf=100).since(None, LATE).quantile(share) == told


def test_only_later_observations_count() -> None:
    before, now = histogram(le0_001=100, le0_01=100, inf=100), histogram(le0_001=100, le0_01=110, inf=110)
    assert now.since(before, LATE).quantile(0.5) == 0.01


@pytest.mark.parametrize("now", [histogram(), histogram(le0_001=5, inf=5), histogram(le0_001=1, inf=2)])
def test_where_nothing_was_observed_there_is_nothing_to_say(now: Samples) -> None:
    assert now.since(histogram(le0_001=5, inf=5), LATE).quantile(0.99) is None


def test_a_histogram_is_summed_over_its_other_labels() -> None:
    text = "".join(
        f'{LATE}_bucket{{tenant="shop",queue="{queue}",le="{bound}"}} {count}\n'
        for queue, counts in (("mail", (1, 2)), ("", (8, 10)))
        for bound, count in zip(("0.001", "+Inf"), counts, strict=True)
    )
    late = read_samples(text).since(None, LATE)
    assert (late.quantile(0.5), late.quantile(0.99)) == (0.001, float("inf"))
