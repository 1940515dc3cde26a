"""The channel that docs/extending.md shows works as it stands there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from everbell.channels.port import Channel
from everbell.core.spec import Draft
from everbell.core.tenant import Tenants
from everbell.engine.engine import Engine
from everbell.engine.requests import Get
from everbell.engine.seen import Seen
from everbell.stores.memory.store import MemoryStore
from everbell.testing import VirtualClock, run_virtual
from tests.scheduling import schedule_seen
from tests.unit.engine.stage import SteadyEntropy

PAGE = Path(__file__).parents[3] / "docs/extending.md"


def spool(root: Path) -> Channel:
    """The channel of the page."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "spool"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    channel: Channel = names["SpoolChannel"](root)
    return channel


def test_the_channel_of_the_page_delivers_and_refuses(tmp_path: Path) -> None:
    (tmp_path / "invoices").mkdir()

    async def main(clock: VirtualClock) -> None:
        engine = await Engine.start(MemoryStore(4), {"spool": spool(tmp_path)}, Tenants(), clock, SteadyEntropy())
        drafts = [
            Draft(clock.now() + 500, "spool:invoices", b"17", "good"),
            Draft(clock.now() + 500, "spool:nowhere", b"18", "bad"),
            Draft(clock.now() + 60_000, "spool:invoices", b"19", "later"),
        ]
        assert all(isinstance(seen, Seen) for seen in await schedule_seen(engine.ask, "default", drafts))
        await asyncio.sleep(2)  # Of virtual time, for the events that are due after half a second.
        statuses = {name: (await engine.ask(Get("default", name))).status for name in ("good", "bad", "later")}
        assert statuses == {"good": "delivered", "bad": "dead", "later": "scheduled"}
        await engine.stop()

    run_virtual(main)
    assert {path.name: path.read_bytes() for path in (tmp_path / "invoices").iterdir()} == {"good": b"17"}
