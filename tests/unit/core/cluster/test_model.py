"""All interleavings of small clusters, by the model checker in `tests/model`. `make model` explores larger ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everbell.core.cluster import Ceded, Effect, Stop
from tests.model import values
from tests.model.explorer import Explorer, Report
from tests.model.moves import Moves
from tests.model.state import Budget, State
from tests.model.towns import SMALL, Town
from tests.model.values import Values
from tests.unit.core.cluster.test_safeguards import joins_survive_the_members_that_they_need, nobody_watches_joiners

STATES_MAX = 20_000


def explored(town: Town) -> Report:
    table = Values()
    return Explorer(table, town.at_rest(table)).run(STATES_MAX)


@pytest.mark.parametrize("town", SMALL, ids=lambda town: town.name)
def test_every_run_is_safe_and_ends_well(town: Town) -> None:
    report = explored(town)

    assert not report.fault, report.fault
    assert report.is_complete


JOINER_DIES = Town("a joiner dies", "ab", "c", 2, Budget(starts=1, kills=1))


@pytest.mark.parametrize(
    "take_away",
    [nobody_watches_joiners, joins_survive_the_members_that_they_need],
    ids=lambda each: each.__name__,
)
def test_a_missing_safeguard_breaks_a_rule(
    take_away: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not explored(JOINER_DIES).fault

    take_away(monkeypatch)

    assert explored(JOINER_DIES).fault


def test_an_owner_that_runs_on_after_its_stop_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    performed = Moves._performed

    def runs_on(self: Moves, state: State, place: int, effect: Effect) -> State:
        after = performed(self, state, place, effect)
        if not isinstance(effect, Stop | Ceded):
            return after
        process = after.processes[place]._replace(running=state.processes[place].running)
        return after._replace(processes=(*after.processes[:place], process, *after.processes[place + 1 :]))

    monkeypatch.setattr(Moves, "_performed", runs_on)

    assert "Unsafe" in explored(Town("one joins", "ab", "c", 3, Budget(starts=1))).fault


def test_a_join_that_the_members_ignore_is_a_dead_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "reactions", lambda before, after, me: ())

    assert explored(Town("one joins", "ab", "c", 3, Budget(starts=1))).fault
