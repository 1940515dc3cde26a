"""The pytest plugin: the fixture `bell`, and async tests that use it run on virtual time.

It is found by pytest through the package's entry point; nothing has to be configured.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from everbell.testing.bell import VirtualBell
from everbell.testing.virtual import VirtualClock, run_virtual


@pytest.fixture
def bell() -> VirtualBell:
    """Everbell on virtual time, started for the test. Override it to give it other policies or another start."""
    return VirtualBell()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that has a `bell` on its loop; everything else is others' business."""
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
