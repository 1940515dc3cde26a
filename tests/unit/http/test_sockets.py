"""The sockets of a pool: never too many, fairly shared, and idle ones make room."""

from __future__ import annotations

from everbell.http.sockets import Sockets


class Origin:
    def __init__(self) -> None:
        self.told = 0

    def go_on(self) -> None:
        self.told += 1


class Connection:
    def __init__(self) -> None:
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True


def test_one_tenant_with_many_hosts_leaves_sockets_to_others() -> None:
    sockets = Sockets(90)
    taken = sum(sockets.take(Origin(), "greedy") for _ in range(1_500))
    assert taken == 60
    assert sockets.take(Origin(), "modest")


def test_an_origin_without_a_socket_is_told_when_one_is_free() -> None:
    sockets, late = Sockets(1), Origin()
    assert sockets.take(Origin(), "a")
    assert not sockets.take(late, "b")
    assert sockets.is_waiting(late)
    sockets.give_back("a")
    assert late.told == 1
    assert sockets.take(late, "b")
    assert not sockets.is_waiting(late)


def test_the_connection_that_was_idle_longest_makes_room() -> None:
    sockets, first, second = Sockets(2), Connection(), Connection()
    for connection in (first, second):
        assert sockets.take(Origin(), f"tenant of {id(connection)}")
    sockets.became_idle(first)
    assert not sockets.take(Origin(), "another")
    assert first.abandoned
    sockets.became_idle(second)
    assert second.abandoned, "an origin waits for a socket"


def test_at_most_half_of_all_sockets_are_idle() -> None:
    sockets, connections = Sockets(10), [Connection() for _ in range(8)]
    for connection in connections:
        sockets.became_idle(connection)
    assert [connection.abandoned for connection in connections] == [True] * 3 + [False] * 5
