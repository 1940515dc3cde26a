"""The session of a collector in the application's database."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from everbell.outbox import statements
from everbell.outbox.settings import OutboxAddress

CONNECT_S = 5.0
ANSWER_S = 35.0


class OutboxConnection:
    """One connection, which runs one statement at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self.woken = asyncio.Event()
        """Set when a transaction has notified."""
        self.identity = ""
        """The name of the outbox in the marks of events."""

    @classmethod
    async def open(cls, address: OutboxAddress) -> OutboxConnection:
        """Connect, and check that there is an outbox. Raises one of `PostgresFailure`."""
        driver = await asyncpg.connect(address.dsn, timeout=CONNECT_S, target_session_attrs="read-write")
        connection = cls(driver)
        try:
            await connection._prepare()
        except BaseException:
            connection.end()
            raise
        return connection

    async def _prepare(self) -> None:
        await self.execute(statements.SESSION)
        if self._connection.get_server_version().major >= statements.IDLE_SESSION_MIN_VERSION:
            await self.execute(statements.IDLE_SESSION)
        (settings,) = await self.fetch(statements.SETTINGS)
        if settings["format"] != statements.FORMAT:
            raise ConnectionError(
                f"the outbox has format {settings['format']}, and this version of Everbell collects {statements.FORMAT}"
            )
        self.identity = settings["identity"]
        await self._connection.add_listener(statements.CHANNEL, lambda *_: self.woken.set())

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        """The rows of a statement. Raises one of `PostgresFailure`."""
        async with self._turn, asyncio.timeout(ANSWER_S):
            rows: list[Any] = await self._connection.fetch(statement, *arguments)
            return rows

    async def value(self, statement: str, *arguments: object) -> Any:
        """The only value of a statement."""
        return (await self.fetch(statement, *arguments))[0][0]

    async def execute(self, script: str) -> None:
        """Run a script without results."""
        async with self._turn, asyncio.timeout(ANSWER_S):
            await self._connection.execute(script)

    async def stay(self) -> None:
        """Keep the session alive while it has nothing else to do."""
        if not self._turn.locked():
            await self.value(statements.STAY)

    def end(self) -> None:
        """Close the connection at once; the server rolls back, and gives the lock to another session."""
        self._connection.terminate()
