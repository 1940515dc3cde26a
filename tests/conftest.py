"""What all tests share: how hard Hypothesis tries, and a free port.

`ci` is the profile of ordinary runs: the same examples each time, so that what is red is red for everybody.
`deep` looks for new examples and takes its time: `pytest --hypothesis-profile=deep`.
"""

from __future__ import annotations

import socket

import pytest
from hypothesis import HealthCheck, settings

# A deadline would measure the machine and not the code; so would the health check for slow examples.
_untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("ci", _untimed, max_examples=100, derandomize=True, database=None)
settings.register_profile("deep", _untimed, max_examples=5_000, derandomize=False, print_blob=True)
settings.load_profile("ci")


@pytest.fixture
def port() -> int:
    """A loopback port that was free a moment ago.

    Prefer port 0, and ask the server what it got; this is for the processes that cannot be asked.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number
