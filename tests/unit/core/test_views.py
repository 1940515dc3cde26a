"""Views of several nodes become one view."""

from __future__ import annotations

from everbell.core.queue_view import QueuesView, QueueView, RecentAttempts, WorkerView, merged_queues
from everbell.core.target_view import BreakerView, ErrorView, RateView, TargetsView, TargetView, merged_targets

EARLY, LATE = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:09.000Z"


def queue(name: str = "mail", waiting: int = 1, in_flight: int = 1, **fields: object) -> QueueView:
    given = {"last_minute": RecentAttempts(1, 1), "workers": (), **fields}
    return QueueView(name, waiting, in_flight, **given)  # type: ignore[arg-type]  # one helper for all fields


def test_queues_of_one_name_are_added() -> None:
    one = queue(oldest_wait_ms=5, last_contact=EARLY, workers=(WorkerView("w", EARLY), WorkerView("x", LATE)))
    other = queue(waiting=4, oldest_wait_ms=9, more=True, stalled=True, workers=(WorkerView("w", LATE, "h"),))
    merged = merged_queues([QueuesView((one,)), QueuesView((queue("sms"), other))], ["n3"])

    mail, sms = merged.queues
    assert (mail.name, mail.waiting, mail.in_flight, mail.oldest_wait_ms) == ("mail", 5, 2, 9)
    assert (mail.more, mail.stalled, mail.last_contact) == (True, True, EARLY)
    assert mail.last_minute == RecentAttempts(2, 2)
    assert [(worker.name, worker.host) for worker in mail.workers] == [("w", None), ("w", "h"), ("x", None)]
    assert sms == queue("sms")
    assert merged.unheard == ("n3",)


def test_a_worker_that_called_two_nodes_is_listed_once() -> None:
    views = [QueuesView((queue(workers=(WorkerView("w", at, "h"),)),)) for at in (EARLY, LATE)]
    assert merged_queues(views, ()).queues[0].workers == (WorkerView("w", LATE, "h"),)


def test_targets_of_one_name_show_the_worst_breaker_and_the_last_error() -> None:
    def target(breaker: BreakerView, error: ErrorView, rate: RateView) -> TargetsView:
        recent = RecentAttempts(10, 1, 5, 10, 20)
        return TargetsView(
            (TargetView("https://a", 1, 2, recent, cap=8, breaker=breaker, last_error=error, rate=rate),)
        )

    closed, opened = BreakerView("closed", 0), BreakerView("open", 9, LATE)
    early, late = ErrorView(EARLY, "e1"), ErrorView(LATE, "e2")
    merged = merged_targets([target(opened, early, RateView(5.0, LATE)), target(closed, late, RateView(5.0))], ())
    (one,) = merged.targets
    assert (one.waiting, one.in_flight, one.cap) == (2, 4, 8)
    assert (one.breaker, one.last_error, one.rate) == (opened, late, RateView(5.0, LATE))
    assert one.last_minute == RecentAttempts(20, 2, 5, 10, 20)
