"""Everbell in a FastAPI application: a lifespan, and a dependency.

    bell = Everbell("rocksdb:./shop")            # or AsyncClient("http://bell:8420", tenant="shop")
    app = FastAPI(lifespan=lifespan(bell))

    @app.post("/orders/{number}")
    async def order(number: int, bell: Bell) -> Scheduled:
        return await bell.schedule({"order": number}, to="handler:remind", in_="20m")

`Scheduled`, `EventView` and the other answers are serialised as they are, and described in the OpenAPI document.
Tests replace the dependency: `app.dependency_overrides[client_of] = lambda: another_client`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from everbell.client.awaiting import AsyncClient
from everbell.contrib.starlette import client_of, lifespan

__all__ = ["Bell", "client_of", "lifespan"]

Bell = Annotated[AsyncClient, Depends(client_of)]
"""The client of the application, as a parameter of a path operation."""
