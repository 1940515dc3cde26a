"""From settings to a running server, and from its end to an exit code."""

from __future__ import annotations

import logging
from functools import partial

import uvloop

from everbell.logs.url import open_log
from everbell.server.node import BROKEN_EXIT, Node, announce
from everbell.server.process import collect_rarely, switch_soon
from everbell.settings import Settings
from everbell.stores.url import open_store

_log = logging.getLogger("everbell.server")


def serve(settings: Settings) -> int:
    """Run a server until it is told to stop; returns the exit code."""
    switch_soon()

    async def main() -> int:
        store = open_store(
            settings.store,
            partitions=settings.partitions,
            reserve_bytes=settings.reserve_disk_bytes,
            relaxed=settings.tenants.is_relaxed,
        )
        log = await open_log(settings.log)
        collect_rarely()
        return await Node(settings, store, log).run(partial(announce, settings))

    code = uvloop.run(main())
    if code == BROKEN_EXIT:
        _log.critical(
            "ended because the store failed; what was acknowledged is in its log: mend the disk and start again"
        )
    return code
