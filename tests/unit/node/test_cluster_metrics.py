"""The cluster's numbers, as Prometheus reads them from one node."""

from __future__ import annotations

from typing import Any, cast

from everbell.client.samples import Samples, read_samples
from everbell.cluster.cluster import Cluster
from everbell.core.cluster import Drain
from everbell.node.cluster_metrics import render_cluster
from tests.scheduling import schedule_seen
from tests.unit.cluster.stage import LEASE_MS, PARTITIONS, Resident, Town, in_town


def numbers(resident: Resident) -> Samples:
    """The metrics of a node. They need only the node and the operations of a cluster."""
    return read_samples("\n".join(render_cluster(cast(Any, resident))))


def test_a_node_reports_members_and_their_partitions() -> None:
    async def scene(town: Town) -> None:
        one, two = await town.grow("n1", "n2")
        for node in (one, two):
            samples = numbers(node)
            assert samples.value("everbell_cluster_members") == 2
            assert samples.value("everbell_cluster_is_member") == 1
            assert samples.value('everbell_cluster_partitions{state="owned"}') == PARTITIONS
            assert samples.value('everbell_cluster_owned_partitions{node="n2"}') == PARTITIONS / 2
            assert samples.value("everbell_cluster_log_index") == node.node.value.index
            assert 0 < samples.value("everbell_cluster_lease_left_seconds") <= LEASE_MS / 1_000
            assert samples.value("everbell_cluster_log_lag_seconds") >= 0

    in_town(scene)


def test_take_overs_stand_ins_and_forwarded_requests_are_counted() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        await schedule_seen(one.ask, "shop", [town.draft("e", 3_600_000, key=town.key_of("n2"))])
        await town.nodes.pop("n2").die()
        await town.settled()
        samples = numbers(one)
        assert samples.value("everbell_forwarded_total") == 1
        assert samples.value("everbell_cluster_takeovers_total") == PARTITIONS / 2
        assert samples.value("everbell_cluster_stand_in_partitions") == PARTITIONS / 2

    in_town(scene)


def test_ring_backups_and_transitions_are_told() -> None:
    async def scene(town: Town) -> None:
        one, *_ = await town.grow("n1", "n2", "n3")
        for name in ("n1", "n2", "n3"):
            assert numbers(one).value(f'everbell_cluster_watchers{{node="{name}"}}') == 1
            assert numbers(one).value(f'everbell_cluster_backed_up_nodes{{node="{name}"}}') == 1
        for name in ("n3", "n2"):
            await town.nodes.pop(name).die()
            await town.settled()
        samples = numbers(one)
        assert samples.value('everbell_cluster_watchers{node="n1"}') == 0, "it is alone"
        assert samples.value('everbell_cluster_transitions_total{kind="join"}') == 3
        assert samples.value('everbell_cluster_transitions_total{kind="remove"}') == 2
        last_s = samples.value("everbell_cluster_last_transition_timestamp_seconds")
        assert town.clock.now() / 1_000 - 60 < last_s <= town.clock.now() / 1_000

    in_town(scene)


def test_a_hand_over_is_no_take_over() -> None:
    async def scene(town: Town) -> None:
        one, _ = await town.grow("n1", "n2")
        one.node.append(Drain("n2"))
        await one.node.player.saw(lambda value: all(part.owner == one.node.me for part in value.partitions), 10)
        samples = numbers(one)
        assert samples.value("everbell_cluster_takeovers_total") == 0
        assert samples.value('everbell_cluster_owned_partitions{node="n2"}') == 0

    in_town(scene)


def test_every_state_of_a_partition_has_a_sample() -> None:
    async def scene(town: Town) -> None:
        one = await town.start("n1")
        text = "\n".join(render_cluster(cast("Cluster", one)))
        for state in ("owned", "moving", "unowned"):
            assert f'everbell_cluster_partitions{{state="{state}"}}' in text

    in_town(scene)
