"""FastAPI and Starlette: the lifespan, the dependency, and answers that serialise themselves."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from everbell import EventView, Everbell, EverbellError, Scheduled
from everbell.contrib.fastapi import Bell, lifespan
from everbell.contrib.starlette import client_of

GUIDE = Path(__file__).parents[3] / "docs/fastapi.md"


def shop() -> FastAPI:
    app = FastAPI(lifespan=lifespan(Everbell("memory:")))

    @app.post("/orders/{number}", status_code=201)
    async def order(number: int, bell: Bell) -> Scheduled:
        return await bell.schedule({"order": number}, to="queue:mail", in_="20m", id=f"order-{number}")

    @app.get("/orders/{number}")
    async def look(number: int, bell: Bell) -> EventView:
        return await bell.get(f"order-{number}")

    return app


def test_an_application_schedules_and_answers_with_the_event() -> None:
    with TestClient(shop()) as client:
        made = client.post("/orders/17")
        again = client.post("/orders/17")
        seen = client.get("/orders/17")
    assert (made.status_code, made.json()["id"], made.json()["created"]) == (201, "order-17", True)
    assert again.json()["created"] is False
    assert seen.json()["payload"] == {"order": 17}
    assert seen.json()["status"] == "scheduled"


def test_the_openapi_document_describes_the_answers() -> None:
    document = shop().openapi()
    answer = document["paths"]["/orders/{number}"]["post"]["responses"]["201"]["content"]["application/json"]["schema"]
    assert {"id", "at", "status", "version", "created"} <= answer["properties"].keys()


def test_the_application_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "everbell_guide_shop.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shop_module = import_module("everbell_guide_shop")
    with TestClient(shop_module.app) as client:
        assert client.post("/orders/17").json()["id"] == "remind-17"
        assert client.get("/orders/17/reminder").json()["status"] == "scheduled"
        assert client.post("/orders/17/paid").json() == {"cancelled": True}


def test_a_lifespan_of_the_user_runs_inside_and_keeps_its_state() -> None:
    @asynccontextmanager
    async def inner(app: Any) -> AsyncIterator[dict[str, Any]]:
        await bell.schedule(1, to="queue:a", in_="1h", id="from-inside")
        yield {"mine": 7}

    bell = Everbell("memory:")
    app = FastAPI(lifespan=lifespan(bell, inner))

    @app.get("/")
    async def look(request: Request, bell: Bell) -> dict[str, Any]:
        return {"mine": request.state.mine, "to": (await bell.get("from-inside")).to}

    with TestClient(app) as client:
        assert client.get("/").json() == {"mine": 7, "to": "queue:a"}


def test_starlette_has_the_client_of_a_request() -> None:
    async def order(request: StarletteRequest) -> JSONResponse:
        return JSONResponse((await client_of(request).schedule(1, to="queue:a", in_="1h")).to_dict())

    routes = [Route("/", order, methods=["POST"])]
    with TestClient(Starlette(routes=routes, lifespan=lifespan(Everbell("memory:")))) as client:
        assert client.post("/").json()["status"] == "scheduled"
    with TestClient(Starlette(routes=routes)) as client, pytest.raises(EverbellError, match="made without lifespan"):
        client.post("/")
