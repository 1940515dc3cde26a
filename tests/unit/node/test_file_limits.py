"""The shares of file descriptors always leave some for the store."""

from __future__ import annotations

import resource

import pytest

from everbell.node.file_limits import gateway_shares, node_shares, raise_file_limit
from everbell.stores.rocksdb import access


@pytest.mark.parametrize("limit", [256, 1_024, 4_096, 65_536, 1 << 20])
def test_connections_leave_descriptors_to_the_store(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    shares = node_shares(limit)
    assert sum(shares) + access.open_files_max() + 60 <= limit
    assert min(shares) >= 1
    assert sum(gateway_shares(limit)) + 60 <= limit


def test_a_large_limit_allows_as_much_as_there_ever_was() -> None:
    assert node_shares(65_536) == (10_000, 256, 16_384)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1_024, 4_096, 4_096), (4_096, 4_096, 4_096), (1_024, resource.RLIM_INFINITY, 1 << 20)],
)
def test_the_soft_limit_is_raised(soft: int, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: limits.append(wanted))
    assert raise_file_limit() == expected
    assert limits[-1] == (expected, hard)
