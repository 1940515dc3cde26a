"""The order in which a resync walks over the copies of a node, and that it leaves none out."""

from __future__ import annotations

from itertools import chain

from everbell.core.amendment import Amendment
from everbell.core.retry import Outcome, RetryPolicy
from everbell.engine.requests import Amend, Cancel, Redrive
from tests.simulation.replica_town import TENANT, Town, draft_at, run_town

REFUSED = Outcome("refused", "no", 400)
HOUR_MS = 3_600_000


def test_the_earliest_due_come_first_and_copies_that_change_meanwhile_are_there() -> None:
    async def story(town: Town) -> None:
        await town.found("a")
        node = town.nodes["a"].replicas
        town.answer = lambda rang: (REFUSED, 0.01)
        now = town.clock.now()
        await town.schedule("a", draft_at(now + 100, id="dead", retry=RetryPolicy(1)))
        await town.schedule("a", draft_at(now + 200, id="redriven", retry=RetryPolicy(1)))
        await town.until(now + 5_000)
        dues = [now + HOUR_MS + (7_919 * number % 60) * 1_000 for number in range(60)]
        for number, due_at in enumerate(dues):
            await town.schedule("a", draft_at(due_at, id=f"event-{number}"))
        await node.ask(Cancel(TENANT, "event-59"))
        in_order = [f"event-{number}" for number in sorted(range(59), key=dues.__getitem__)]

        pages = node.store.pages(10, 0, 1)
        walked = [next(pages), next(pages)]
        assert [name for _, name in chain(*walked)] == in_order[:20]

        await node.ask(Amend(TENANT, in_order[50], Amendment(due_at=now + HOUR_MS - 1_000), None))
        await node.ask(Amend(TENANT, in_order[40], Amendment(due_at=now + 2 * HOUR_MS), None))
        await node.ask(Redrive(TENANT, "redriven"))
        await town.schedule("a", draft_at(now + HOUR_MS // 2, id="new"))
        walked += pages
        names = {name for _, name in chain(*walked)}
        assert names >= {*in_order, "event-59", "dead", "redriven"}

    run_town(story)


def test_nodes_that_walk_together_begin_with_different_pages() -> None:
    async def story(town: Town) -> None:
        await town.found("a")
        due_at = town.clock.now() + HOUR_MS
        for number in range(70):
            await town.schedule("a", draft_at(due_at + number, id=f"event-{number}"))
        walks = [list(town.nodes["a"].replicas.store.pages(10, turn, 3)) for turn in range(3)]

        assert len({tuple(walk[0]) for walk in walks}) == 3
        names = [sorted(chain(*walk)) for walk in walks]
        assert names[0] == names[1] == names[2]

    run_town(story)
