"""The log of librdkafka: said once, not for every connection that fails."""

from __future__ import annotations

import logging

from everbell.kafka.library_log import REPEAT_S, Seldom


def said(seldom: Seldom, text: str, at_s: float) -> bool:
    record = logging.LogRecord("rdkafka", logging.ERROR, "", 0, text, None, None)
    record.created = at_s
    return bool(seldom.filter(record))


def test_a_message_is_said_once_in_a_while() -> None:
    seldom = Seldom()
    text = "FAIL [everbell#producer-2] [thrd:k1:9092/1]: k1:9092/1: Connection refused (after {} ms)"

    assert said(seldom, text.format(1), 100)
    assert not said(seldom, text.format(7), 100 + REPEAT_S / 2)
    assert said(seldom, text.format(3), 100 + REPEAT_S)
    assert said(seldom, text.replace("k1", "k2"), 100 + REPEAT_S)


def test_properties_of_the_other_side_are_no_news() -> None:
    assert not said(Seldom(), "CONFWARN [everbell#producer-1] [thrd:app]: session.timeout.ms is a consumer property", 1)
