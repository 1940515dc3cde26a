from __future__ import annotations

import os

from everbell.bench.usage import family_of, usage_of


def test_a_process_uses_something() -> None:
    usage = usage_of([os.getpid()])

    assert usage.cpu_s > 0
    assert 1_000_000 < usage.rss_bytes <= usage.peak_bytes


def test_usage_of_several_is_added_up() -> None:
    once, twice = usage_of([os.getpid()]), usage_of([os.getpid()] * 2)

    assert twice.cpu_s >= 2 * once.cpu_s
    assert twice.peak_bytes >= 2 * once.peak_bytes


def test_a_process_is_of_its_own_family() -> None:
    assert family_of(os.getpid())[0] == os.getpid()
