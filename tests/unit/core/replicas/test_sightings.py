"""Which other nodes may hold copies that this node does not know of."""

from __future__ import annotations

from everbell.core.replicas.sightings import AWAY_MAX_MS, DOUBT_MS, Sightings

HOUR_MS = 3_600_000


def test_ends_are_needed_until_every_other_node_has_agreed() -> None:
    sightings = Sightings()
    sightings.follow(["b", "c"], 0)
    sightings.agree("b", 50)
    assert not sightings.all_seen_since(40)
    sightings.agree("c", 60)
    assert sightings.all_seen_since(40)
    sightings.differ("b")
    assert not sightings.all_seen_since(40)


def test_a_node_is_given_up_a_day_after_it_left_and_not_after_it_joined() -> None:
    sightings = Sightings()
    sightings.follow(["b", "c"], 0)
    left_ms = 3 * AWAY_MAX_MS
    sightings.follow(["c"], left_ms)
    sightings.give_up(left_ms + AWAY_MAX_MS)
    assert list(sightings.away) == ["b"]
    assert sightings.doubtful(left_ms + DOUBT_MS - 1) == ("b",)
    assert sightings.doubtful(left_ms + DOUBT_MS) == ()
    sightings.give_up(left_ms + AWAY_MAX_MS + 1)
    assert not list(sightings.away)
    sightings.agree("c", left_ms)
    assert sightings.all_seen_since(left_ms)


def test_a_node_that_said_goodbye_is_not_away() -> None:
    sightings = Sightings()
    sightings.follow(["b", "c"], 0)
    sightings.agree("c", 10)
    sightings.gone("b")
    assert not sightings.members_seen_since(5)  # It is still a member, and may start again.
    sightings.follow(["c"], 20)
    assert not list(sightings.away)
    assert sightings.members_seen_since(5)


def test_nodes_tell_each_other_who_is_away() -> None:
    knows, new = Sightings(), Sightings()
    knows.follow(["b", "c"], 0)
    knows.follow(["c"], 1_000)
    new.follow(["a", "c"], 500_000)
    new.learn_away(knows.away_since(HOUR_MS), 600_000)
    assert list(new.away) == ["b"]
    assert new.away_since(600_000) == [("b", HOUR_MS - 1_000)]
    new.follow(["a", "b", "c"], 700_000)
    assert not list(new.away)
    new.learn_away(knows.away_since(HOUR_MS), 700_000)
    assert not list(new.away)


def test_members_have_agreed_if_each_did_so_since_the_last_change() -> None:
    sightings = Sightings()
    sightings.follow(["b"], 0)
    sightings.agree("b", 10)
    assert sightings.have_agreed()
    sightings.follow(["b", "c"], 20)
    sightings.agree("c", 30)
    assert not sightings.have_agreed()
    sightings.agree("b", 30)
    assert sightings.have_agreed()
