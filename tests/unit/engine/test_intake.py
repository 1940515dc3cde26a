"""Drafts become events: ids, sequences, partitions, and requests larger than a group."""

from __future__ import annotations

from everbell.core.event import Event
from everbell.core.ids import partition_of, place_in
from everbell.engine.seen import Seen
from everbell.engine.writer import GROUP_CHANGES_MAX
from everbell.errors import Conflict
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import Stage, play


def test_a_made_id_carries_where_the_event_lies() -> None:
    async def scene(stage: Stage) -> None:
        event = await stage.schedule("e", 1_000)

        assert place_in(event.id) == (event.due_at, event.sequence, event.partition)

    play(scene)


def test_a_key_or_an_id_of_the_client_picks_the_partition() -> None:
    async def scene(stage: Stage) -> None:
        keyed = await stage.schedule("a", 1_000, key="k", id="i")
        named = await stage.schedule("b", 1_000, id="j")

        assert keyed.partition == partition_of("default", "k", stage.store.partitions)
        assert named.partition == partition_of("default", "j", stage.store.partitions)

    play(scene)


def test_sequences_grow_across_restarts() -> None:
    async def scene(stage: Stage) -> None:
        before = await stage.schedule("a", 60_000)
        await stage.restart()
        after = await stage.schedule("b", 60_000)

        assert after.sequence > before.sequence

    play(scene)


def test_a_large_request_is_stored_in_groups_and_answered_in_order() -> None:
    async def scene(stage: Stage) -> None:
        count = 2 * GROUP_CHANGES_MAX + 500
        drafts = [stage.draft(f"e{number}", 60_000) for number in range(count)]
        results = await schedule_seen(stage.engine.ask, "default", drafts)

        names = [seen.event.payload for seen in results if isinstance(seen, Seen) and isinstance(seen.event, Event)]
        assert names == [draft.payload for draft in drafts]
        assert max(map(len, stage.store.applied)) <= GROUP_CHANGES_MAX

    play(scene)


def test_of_two_with_one_id_in_a_request_the_first_is_made() -> None:
    async def scene(stage: Stage) -> None:
        drafts = [stage.draft("a", 60_000, id="i"), stage.draft("a", 60_000, id="i"), stage.draft("b", 60_000, id="i")]
        first, again, other = await schedule_seen(stage.engine.ask, "default", drafts)

        assert isinstance(first, Seen)
        assert first.created
        assert isinstance(again, Seen)
        assert not again.created
        assert isinstance(other, Conflict)

    play(scene)
