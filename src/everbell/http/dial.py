"""From a host name to a connection: resolve, check, connect.

Every address of a name is checked by the guard for each connection, and the
connection is made to one of the addresses that were checked. Between the check and the connection nothing is
resolved again.

One refused address refuses the name: an answer that mixes public and private addresses is either an attack or
a network that the deployment should open explicitly.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Coroutine, Sequence

from everbell.http.address_guard import Guard, RefusedAddress, literal_address
from everbell.http.client_connection import HttpConnection
from everbell.http.client_message import HttpFailure
from everbell.http.resolver import Resolve, Resolver

# All addresses of a name are checked, but only the first few are tried.
ADDRESSES_TRIED_MAX = 8
# A silent address must not use up the time of the request: the next one is tried beside it after this long
# (RFC 8305).
STAGGER_S = 0.25


class Dialler:
    """Makes connections. Raises `HttpFailure` with a reason for the user when it cannot."""

    def __init__(
        self,
        guard: Guard | None,
        resolve: Resolve,
        ssl_context: ssl.SSLContext | None,
        stagger_s: float = STAGGER_S,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._guard = guard
        self._ssl_context = ssl_context
        self._stagger_s = stagger_s
        self._resolver = Resolver(resolve, now or asyncio.get_running_loop().time)

    async def dial(
        self, scheme: str, host: str, port: int, make: Callable[[], HttpConnection], tenant: str = ""
    ) -> HttpConnection:
        """Connect to a host, for a tenant."""
        addresses = await self._addresses(host, port, tenant)
        self._check(host, addresses)

        def connect(address: str) -> Coroutine[None, None, HttpConnection]:
            return self._connect(address, scheme, host, port, make)

        if len(addresses) == 1:
            return await connect(addresses[0])
        return await _first(connect, addresses[:ADDRESSES_TRIED_MAX], self._stagger_s)

    async def _addresses(self, host: str, port: int, tenant: str) -> Sequence[str]:
        literal = literal_address(host)
        return await self._resolver.addresses(host, port, tenant) if literal is None else [literal]

    def is_waiting(self, host: str) -> bool:
        """Whether the name of the host waits for its turn to be resolved."""
        return self._resolver.is_waiting(host)

    def _check(self, host: str, addresses: Sequence[str]) -> None:
        if self._guard is None:
            return
        for address in addresses:
            try:
                self._guard.check(address)
            except RefusedAddress as refusal:
                raise HttpFailure("refused-address", f"{host} is refused: {refusal.reason}") from refusal

    async def _connect(
        self, address: str, scheme: str, host: str, port: int, make: Callable[[], HttpConnection]
    ) -> HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            if scheme == "https":
                _, connection = await loop.create_connection(
                    make, address, port, ssl=self._tls(), server_hostname=host.removesuffix(".")
                )
            else:
                _, connection = await loop.create_connection(make, address, port)
        except ssl.SSLError as error:
            raise HttpFailure("tls", f"no secure connection to {host} port {port}: {_tls_reason(error)}") from error
        except OSError as error:
            explanation = os.strerror(error.errno) if error.errno else str(error) or "the peer hung up"
            raise HttpFailure("connect", f"cannot connect to {host} ({address}) port {port}: {explanation}") from error
        return connection

    def _tls(self) -> ssl.SSLContext:
        # Made when it is first needed: loading the trusted certificates takes a while.
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    return f"the TLS handshake failed ({(error.reason or str(error)).replace('_', ' ').lower()})"


async def _first(
    connect: Callable[[str], Coroutine[None, None, HttpConnection]], addresses: Sequence[str], stagger_s: float
) -> HttpConnection:
    """The first connection that is made. The next attempt starts when one has failed, or after `stagger_s`."""
    failures: list[BaseException] = []
    attempts: list[asyncio.Task[HttpConnection]] = []
    winner = None
    try:
        while len(failures) < len(addresses):
            if len(attempts) < len(addresses):
                attempts.append(asyncio.create_task(connect(addresses[len(attempts)])))
            is_last = len(attempts) == len(addresses)
            running = [task for task in attempts if not task.done()]
            await asyncio.wait(running, timeout=None if is_last else stagger_s, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    failure = task.exception()
                    if failure is None:
                        winner = task
                        return task.result()
                    failures.append(failure)
        raise failures[0]
    finally:
        for task in attempts:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_hang_up)


def _hang_up(task: asyncio.Task[HttpConnection]) -> None:
    """Close a connection that was made too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().abandon()
