"""The pytest plugin: the fixture `bell`, and virtual time for async tests that use it.

pytest finds it through the package's entry point; it needs no configuration.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from everbell.testing.bell import VirtualBell
from everbell.testing.virtual import VirtualClock, run_virtual


@pytest.fixture
def bell() -> VirtualBell:
    """Everbell on virtual time, started for the test. Override it to set policies or another start."""
    return VirtualBell()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses `bell` on virtual time; all other tests run as usual."""
    bell = pyfuncitem.funcargs.get("bell")
    if not isinstance(bell, VirtualBell) or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def run(clock: VirtualClock) -> None:
        async with bell:
            await pyfuncitem.obj(**arguments)

    run_virtual(run)
    return True
