"""The targets of coverage-guided fuzzing accept their seeds, and what the search has found before."""

from __future__ import annotations

import pytest

from tests.fuzzing.seeds import SEEDS
from tests.fuzzing.targets import TARGETS

FOUND = (
    ("batch", b"\x0b[]"),
    ("log", b'\x81\xaf\x9b{"command":"drain","name":""}'),
)


@pytest.mark.parametrize(("name", "data"), [(name, seed) for name in TARGETS for seed in SEEDS[name]])
def test_seeds(name: str, data: bytes) -> None:
    TARGETS[name](data)
    TARGETS[name](data[:-1])


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_earlier_findings(name: str, data: bytes) -> None:
    TARGETS[name](data)
