"""A session with ZooKeeper, for asyncio.

The driver, kazoo, has its own threads: requests are queued without waiting, and answers and watch events come back
to the loop through `call_soon_threadsafe`. It reconnects by itself, with the same session while that lives.

- A request is sent only while connected, so a failure before that has no effect.
- A later failure has an unknown outcome: a lost connection, an expired session, no answer in time.
- Answers that are expected in some places, such as "no such node", are values.
- At debug level, the driver logs requests with their passwords. Its logger is therefore limited to errors.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl

from everbell.errors import LogError, LogUnavailable, LogUnusable
from everbell.logs.signal import Signal
from everbell.logs.zookeeper_address import ZookeeperAddress

ZookeeperCall = Callable[[Any], Any]
"""A function that calls one of the client's `…_async` methods."""

_EXPECTED = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)
_RETRY = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}

_log = logging.getLogger("everbell.logs.zookeeper")
_driver_log = _log.getChild("driver")
_driver_log.setLevel(logging.ERROR)


class Session:
    """One session. `news` rings after a watch event and when the connection changes."""

    def __init__(self, address: ZookeeperAddress, session_s: float, timeout_s: float) -> None:
        self.news = Signal()
        self._loop = asyncio.get_running_loop()
        self._address = address
        self._timeout_s = timeout_s
        self._ending = threading.Lock()
        self._has_ended = False
        user = address.user
        self._client = KazooClient(
            address.hosts,
            timeout=session_s,
            auth_data=[("digest", ":".join(user))] if user else None,
            default_acl=[make_digest_acl(*user, all=True)] if user else None,
            connection_retry=_RETRY,
            logger=_driver_log,
        )
        self._client.add_listener(self._on_news)
        self._client.start_async()

    @property
    def id(self) -> int | None:
        current = self._client.client_id
        return None if current is None else current[0]

    def watch(self, event: object) -> None:
        """The watch function for requests. It is always the same, so that the driver keeps it once for each path."""
        self._on_news(event)

    async def ask(self, *requests: ZookeeperCall, lost: type[LogError] = LogUnavailable) -> list[Any]:
        """Send requests in order and return their answers. Raises `lost` if the outcome is unknown, otherwise
        `LogUnavailable` or `LogUnusable`.
        """
        if self._has_ended:
            raise LogUnavailable("the session is closed: its lease has run out, or this process is stopping")
        failure: type[LogError] = LogUnavailable
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._until_connected()
                failure = lost
                futures = [self._send(request) for request in requests]
                answers = [await future for future in futures]
        except TimeoutError as error:
            raise self._failed(failure, "no answer in time") from error
        for answer in answers:
            if isinstance(answer, NoAuthError | AuthFailedError):
                raise LogUnusable(
                    f"{self._address.name}: this user may not use it: give the user and password in the URL"
                ) from answer
            if isinstance(answer, Exception) and not isinstance(answer, _EXPECTED):
                raise self._failed(failure, type(answer).__name__) from answer
        return answers

    async def end(self) -> None:
        """End the session and all its ephemeral nodes."""
        done = asyncio.Event()
        self.end_soon(lambda: self._tell_loop(done.set))
        try:
            async with asyncio.timeout(self._timeout_s):
                await done.wait()
        except TimeoutError:
            _log.warning("%s does not answer; the session will end by itself", self._address.name)

    def end_soon(self, then: Callable[[], None] = lambda: None) -> None:
        """End the session without waiting."""

        def end() -> None:
            self.end_now()
            then()

        # A thread of its own and not one of the loop's pool, because the driver may block while the server is away.
        threading.Thread(target=end, name="everbell-zookeeper-end", daemon=True).start()

    def end_now(self) -> None:
        """End the session from any thread; blocks."""
        with self._ending:
            if self._has_ended:
                return
            self._has_ended = True
            try:
                self._client.stop()
                self._client.close()
            except KazooException as error:
                _log.warning(
                    "%s: a session could not be closed (%r), and will end by itself", self._address.name, error
                )

    async def _until_connected(self) -> None:
        while not self._client.connected:
            ticket = self.news.ticket()
            if self._client.client_state == KeeperState.AUTH_FAILED:
                raise LogUnusable(f"{self._address.name} refuses the user and password of the URL: correct them")
            if not self._client.connected:
                await self.news.wait(ticket, self._timeout_s)

    def _send(self, request: ZookeeperCall) -> asyncio.Future[Any]:
        future = self._loop.create_future()

        def settle(answer: Any) -> None:
            if not future.done():
                future.set_result(answer)

        request(self._client).rawlink(lambda result: self._tell_loop(settle, result.exception or result.value))
        return future

    def _on_news(self, _: object) -> None:
        self._tell_loop(self.news.ring)

    def _tell_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return  # The loop is closed.

    def _failed(self, failure: type[LogError], reason: str) -> LogError:
        if failure is LogUnavailable:
            todo = "check that it runs and can be reached; trying again"
        else:
            todo = "the answer was lost: repeat the command"
        return failure(f"{self._address.name} cannot be used now ({reason}): {todo}")
