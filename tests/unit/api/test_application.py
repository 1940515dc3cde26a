"""Routes, problems, and the pages about the server itself."""

from __future__ import annotations

import logging

import pytest

from everbell.api.authorizer import Authorizer
from everbell.core.health import Health
from everbell.errors import EverbellError, Overloaded, StoreFull
from everbell.http.message import HttpRequest, encode
from everbell.http.problem import problem_of, server_problem
from tests.unit.api.api_caller import EVENTS, SOON, Answered, Caller, called


def test_an_unknown_path_is_a_problem() -> None:
    async def test(caller: Caller) -> None:
        for target in ("/nope", "/v1", f"{EVENTS}/", f"{EVENTS}/a/b/c", "/v1/tenants//events", "/healthz/"):
            answer = await caller.call("GET", target)
            assert (answer.status, answer.content_type) == (404, "application/problem+json"), target
            assert answer.json["type"] == "https://everbell.dev/problems/not-found"

    called(test)


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PUT", EVENTS, "DELETE, GET, HEAD, PATCH, POST"),
        ("POST", f"{EVENTS}/one", "DELETE, GET, HEAD, PATCH, PUT"),
        ("OPTIONS", "/healthz", "GET, HEAD"),
        ("GET", "/v1/tenants/shop/queues/work/lease", "POST"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, target: str, allowed: str) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call(method, target)
        assert answer.status == 405
        assert answer.headers["allow"] == allowed
        assert answer.json["title"] == "The method is not allowed here"

    called(test)


@pytest.mark.parametrize("tenant", ["-x", "a%20b", "a%2Fb", "%C3%BC", "x" * 65, "..."])
def test_a_tenant_has_a_plain_name(tenant: str) -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("POST", f"/v1/tenants/{tenant}/events", SOON)
        assert (answer.status, answer.json["field"]) == (422, "tenant")

    called(test)


def test_head_is_get_without_the_body() -> None:
    async def test(caller: Caller) -> None:
        await caller.schedule(id="one")
        for target in (f"{EVENTS}/one", EVENTS, "/healthz", "/docs"):
            head = caller.api(HttpRequest("HEAD", target))
            response = head if not hasattr(head, "__await__") else await head
            get = await caller.call("GET", target)
            assert (response.status, response.body) == (get.status, get.body), target
            assert encode(response, True, b"").endswith(b"\r\n\r\n")

    called(test)


@pytest.mark.parametrize(
    ("state", "alive", "ready"),
    [("starting", 200, 503), ("ready", 200, 200), ("away", 200, 503), ("stopping", 200, 503), ("broken", 503, 503)],
)
def test_health(state: str, alive: int, ready: int) -> None:
    async def test(caller: Caller) -> None:
        caller.health = Health(state, "because")  # type: ignore[arg-type]
        for target, status in (("/healthz", alive), ("/readyz", ready)):
            answer = await caller.call("GET", target)
            assert answer.status == status
            assert answer.json == {"state": state, "reason": "because"}

    called(test)


def test_metrics_are_text() -> None:
    async def test(caller: Caller) -> None:
        answer = await caller.call("GET", "/metrics")
        assert (answer.status, answer.body) == (200, b"up 1\n")
        assert answer.content_type.startswith("text/plain; version=0.0.4")

    called(test)


def test_pages_need_nothing_from_elsewhere() -> None:
    async def test(caller: Caller) -> None:
        for target in ("/", "/docs"):
            answer = await caller.call("GET", target)
            assert answer.status == 200
            assert answer.content_type == "text/html; charset=utf-8"
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
            page = answer.body.decode()
            assert not any(mark in page for mark in ("<script", "src=", "@import", "url(", 'href="http'))

    called(test)


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"host": "bells.example:9000"}, "http://bells.example:9000/v1/"),
        ({"host": "bells.example", "x_forwarded_proto": "https"}, "https://bells.example/v1/"),
        ({"host": "<b>"}, "http://&lt;b&gt;/v1/"),
    ],
)
def test_the_example_in_the_documentation_is_for_this_server(headers: dict[str, str], url: str) -> None:
    async def test(caller: Caller) -> None:
        assert f"curl {url}" in (await caller.call("GET", "/docs", **headers)).body.decode()

    called(test)


def test_the_documentation_names_every_operation_and_schema() -> None:
    async def test(caller: Caller) -> None:
        page = (await caller.call("GET", "/docs")).body.decode()
        document = (await caller.call("GET", "/openapi.json")).json
        for path, methods in document["paths"].items():
            for method in methods:
                assert f"{method.upper()} {path}" in page
        for name in document["components"]["schemas"]:
            assert f'id="{name}"' in page

    called(test)


def test_an_inner_failure_is_told_to_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "everbell.server"):
        answer = Answered(problem_of(EverbellError("the key of the vault is under the mat")))
    assert answer.status == 500
    assert "vault" not in answer.body.decode()
    assert "vault" in caplog.text


def test_a_client_that_may_retry_is_told_when() -> None:
    assert Answered(problem_of(Overloaded("too much", 7))).headers == {"retry-after": "7"}
    full = Answered(problem_of(StoreFull("no room")))
    assert (full.status, full.json["type"]) == (507, "https://everbell.dev/problems/disk-full")


@pytest.mark.parametrize(
    ("status", "slug"), [(400, "malformed"), (408, "request-timeout"), (413, "too-large"), (503, "overloaded")]
)
def test_the_http_server_speaks_of_its_problems_in_the_same_way(status: int, slug: str) -> None:
    answer = Answered(server_problem(status, "so it is"))
    assert answer.json["type"] == f"https://everbell.dev/problems/{slug}"
    assert answer.json["status"] == answer.status == status
    assert answer.json["detail"] == "so it is"


def test_a_request_is_judged_before_its_body_comes() -> None:
    async def test(caller: Caller) -> None:
        def screened(method: str, target: str) -> int | str:
            verdict = caller.api.screen(HttpRequest(method, target, {}))
            return verdict if isinstance(verdict, str) else verdict.status

        assert screened("POST", EVENTS) == ""
        assert screened("POST", "/v1/nothing") == 404
        assert screened("DELETE", EVENTS + "/batch/x/y") == 404
        assert screened("PUT", "/healthz") == 405
        caller.api._authorizer = Authorizer(may_be_open=False)
        assert screened("POST", EVENTS) == 401

    called(test)
