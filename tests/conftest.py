"""The setup that all tests share: how Hypothesis finds its examples, when a test counts as hanging, and a free port.

`ci` is the profile of ordinary runs. It tries the same examples each time, on every machine: a failure on one machine
is
a failure on all. `fuzz` tries other examples for each seed, and more of them; `make fuzz` uses it (tests/fuzz.py).
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# A deadline would measure the machine, not the code; so would the health check for slow examples.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)

settings.register_profile("ci", _untimed, max_examples=100, derandomize=True)
settings.register_profile("fuzz", _untimed, max_examples=500, derandomize=False, print_blob=True)
settings.load_profile("ci")

HANGING_S = {"unit": 120, "conformance": 300, "simulation": 300, "acceptance": 600}
"""After this number of seconds a test counts as hanging: it fails, and shows where each thread is. The limits are
generous,
because a busy machine is no reason to fail: the slowest unit test needs 12 s of CPU."""


def pytest_configure() -> None:
    """Make the examples of an ordinary run independent of the imported modules and of the folder of the clone.

    Hypothesis also tries the constants of all imported modules, except of those in a folder named "tests". So the
    examples of a test would depend on which other tests run, and on the path of the clone.
    """
    if settings().derandomize:
        providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test the limit of its folder, unless the command line has another one (`--timeout`, 0 for none)."""
    if config.getoption("timeout") is None:
        here = Path(__file__).parent
        for item in items:
            if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(HANGING_S[item.path.relative_to(here).parts[0]]))


@pytest.fixture
def port() -> int:
    """A loopback port that was free a moment ago.

    Prefer port 0, and ask the server for its port; this fixture is for processes that cannot be asked.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number
