"""A node that holds a lease and does nothing else: `python -m tests.acceptance.lease_holder URL MEMBER TTL_MS [stuck]`.

It renews the lease again and again, and prints a line each time. With "stuck" it renews once, and then its event loop
never runs again, though its threads do.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from everbell.logs.url import open_log


async def main(url: str, member: str, ttl_ms: int, is_stuck: bool) -> None:
    log = await open_log(url)
    while True:
        await log.renew(member, ttl_ms)
        sys.stdout.write("renewed\n")
        sys.stdout.flush()
        if is_stuck:
            signal.pause()  # A process whose loop stands still, until it is killed.
        await asyncio.sleep(ttl_ms / 3_000)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "stuck" in sys.argv[4:]))
