"""Everbell in a Starlette application: a client that starts and ends with the application.

bell = Everbell("rocksdb:./shop")            # or AsyncClient("http://bell:8420", tenant="shop")
app = Starlette(routes=[…], lifespan=lifespan(bell))

async def order(request: Request) -> JSONResponse:
    scheduled = await client_of(request).schedule({"order": 17}, to="handler:remind", in_="20m")
    return JSONResponse(scheduled.to_dict())
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from everbell.client.awaiting import AsyncClient
from everbell.errors import EverbellError

InnerLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    client: AsyncClient, inner: InnerLifespan | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """The lifespan of an application that uses this client: it starts before the first request and ends after the last.

    `inner` is a lifespan of your own. It runs inside, so it may schedule events; its state is kept.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with client:
            if inner is None:
                yield {"everbell": client}
            else:
                async with inner(app) as state:
                    yield {**(state or {}), "everbell": client}

    return run


def client_of(connection: HTTPConnection) -> AsyncClient:
    """The client of the application that serves this request or websocket. Raises `EverbellError` without one."""
    client = getattr(connection.state, "everbell", None)
    if not isinstance(client, AsyncClient):
        raise EverbellError("this application was made without lifespan=everbell.contrib.starlette.lifespan(…)")
    return client
