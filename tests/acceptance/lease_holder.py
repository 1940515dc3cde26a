"""A node that only holds a lease: `python -m tests.acceptance.lease_holder URL MEMBER TTL_MS [stuck]`.

It renews the lease repeatedly, and prints a line each time. With "stuck" it renews once, and then blocks its event loop
for ever, while its threads keep running.
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
            signal.pause()  # Block the loop until the process is killed.
        await asyncio.sleep(ttl_ms / 3_000)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), "stuck" in sys.argv[4:]))
