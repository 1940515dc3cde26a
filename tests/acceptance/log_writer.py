"""A node that only writes to the log: `python -m tests.acceptance.log_writer URL` prints each acknowledged index."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from everbell.logs.url import open_log


async def main(url: str) -> None:
    log = await open_log(url)
    for number in count(1):
        sys.stdout.write(f"{await log.append(b'%d' % number)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
