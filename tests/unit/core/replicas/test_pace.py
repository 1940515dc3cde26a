from __future__ import annotations

from everbell.core.replicas.pace import BUSY_MS, PER_S_MAX, REST_MAX_MS, ResyncPace

USUAL_MS = 200 * 1_000 / PER_S_MAX


def test_quick_pages_go_at_the_full_rate() -> None:
    pace = ResyncPace()
    assert [pace.rest_ms(200, 2) for _ in range(5)] == [USUAL_MS] * 5


def test_a_third_of_the_time_is_left_for_other_work() -> None:
    assert ResyncPace().rest_ms(200, BUSY_MS) == BUSY_MS / 2


def test_a_busy_node_is_left_alone_for_most_of_the_time() -> None:
    pace = ResyncPace()
    assert pace.rest_ms(200, 2 * BUSY_MS) > 2 * 2 * BUSY_MS
    assert pace.rest_ms(200, 60_000) == REST_MAX_MS
    assert pace.rest_ms(200, 2) == USUAL_MS


def test_a_busy_loop_of_this_node_makes_the_next_rest_longer() -> None:
    pace = ResyncPace()
    pace.rest_ms(200, 2)
    pace.note_rest(int(USUAL_MS) + 50)
    assert pace.rest_ms(200, 2) > 100

    pace.note_rest(100)
    assert pace.rest_ms(200, 2) == USUAL_MS
