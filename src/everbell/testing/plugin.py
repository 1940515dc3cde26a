"""The pytest plugin: the fixture `bell`, and virtual time for async tests that use it.

pytest finds it through the package's entry point; it needs no configuration.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from everbell.testing.bell import VirtualBell
from everbell.testing.virtual import VirtualClock, run_virtual


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'everbell(tenant="default", policies=(), start="now"): the arguments of the VirtualBell in the fixture `bell`.',
    )


@pytest.fixture
def bell(request: pytest.FixtureRequest) -> VirtualBell:
    """Everbell on virtual time, started for the test. The mark `everbell` gives it arguments."""
    mark = request.node.get_closest_marker("everbell")
    return VirtualBell() if mark is None else VirtualBell(*mark.args, **mark.kwargs)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses `bell` on virtual time; all other tests run as usual."""
    bell = pyfuncitem.funcargs.get("bell")
    # pytest-asyncio wraps the test in a function that runs it on a loop of its own.
    test = inspect.unwrap(pyfuncitem.obj)
    if not isinstance(bell, VirtualBell) or not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def run(clock: VirtualClock) -> None:
        async with bell:
            await test(**arguments)

    run_virtual(run)
    return True
