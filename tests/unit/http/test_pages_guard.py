"""Pages of other sites are kept out, programs are not."""

from __future__ import annotations

import pytest

from everbell.http.message import HttpRequest, HttpResponse
from everbell.http.pages_guard import PagesGuard, is_this_machine

OK = HttpResponse(200)


def ask(method: str, headers: dict[str, str], *, on_loopback: bool = True) -> int:
    answer = PagesGuard(lambda request: OK, on_loopback=on_loopback)(HttpRequest(method, "/v1/backups", headers))
    assert isinstance(answer, HttpResponse)
    return answer.status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8420",
        "127.0.0.1",
        "127.0.0.1:8420",
        "127.9.9.9:1",
        "[::1]",
        "[::1]:8420",
        "LOCALHOST.:80",
        "",
    ],
)
def test_names_of_this_machine(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "10.0.0.1:8420", "localhost.evil.example", "[fe80::1]"]
)
def test_a_name_that_was_bound_to_loopback_is_refused(host: str) -> None:
    assert not is_this_machine(host)
    assert ask("GET", {"host": host}) == 403
    assert ask("GET", {"host": host}, on_loopback=False) == 200


def test_a_program_names_no_origin() -> None:
    assert ask("POST", {"host": "127.0.0.1:8420"}) == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:3000", "null"])
def test_a_page_of_another_origin_changes_nothing(method: str, origin: str) -> None:
    assert ask(method, {"host": "127.0.0.1:8420", "origin": origin}) == 403


def test_a_page_of_this_server_may() -> None:
    assert ask("POST", {"host": "127.0.0.1:8420", "origin": "http://127.0.0.1:8420"}) == 200


def test_a_cross_site_request_without_origin_is_refused() -> None:
    assert ask("POST", {"host": "127.0.0.1:8420", "sec-fetch-site": "cross-site"}) == 403
