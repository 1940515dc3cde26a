"""Requests and responses as values."""

from __future__ import annotations

import json

import pytest

from everbell.http import message
from everbell.http.message import CLOSE, HttpRequest, HttpResponse, encode, problem


@pytest.mark.parametrize(
    ("target", "raw_path", "path"),
    [
        ("/", "/", "/"),
        ("/a/b?x=1", "/a/b", "/a/b"),
        ("/a%2Fb/%C3%A9%20?%2F", "/a%2Fb/%C3%A9%20", "/a/b/é "),
        ("//a", "//a", "//a"),
        ("http://example.com/a?x=1", "/a", "/a"),
        ("https://example.com", "/", "/"),
    ],
)
def test_the_path_is_decoded_and_kept_as_it_came(target: str, raw_path: str, path: str) -> None:
    request = HttpRequest("GET", target)
    assert (request.raw_path, request.path) == (raw_path, path)


def test_the_query_keeps_the_last_of_a_repeated_name() -> None:
    request = HttpRequest("GET", "/events?tag=a&tag=b%20c&limit=5&empty=&plus=a+b")
    assert request.query == {"tag": "b c", "limit": "5", "empty": "", "plus": "a b"}
    assert request.query_all("tag") == ["a", "b c"]
    assert request.query_all("none") == []
    assert HttpRequest("GET", "http://example.com/a?x=1").query == {"x": "1"}
    assert HttpRequest("GET", "/events").query == {}


@pytest.mark.parametrize("target", ["", "a/b", "*", "ftp://example.com/", "http:/a", "/%ff", "/%c3"])
def test_a_target_that_is_no_path_is_refused(target: str) -> None:
    with pytest.raises(ValueError):
        HttpRequest("GET", target)


def test_options_may_ask_about_the_whole_server() -> None:
    assert HttpRequest("OPTIONS", "*").path == "*"


class Caller:
    """The other end of a connection, as a request sees it."""

    gone = False
    is_answering = False


def test_a_request_knows_when_its_client_has_left() -> None:
    caller = Caller()
    request = HttpRequest("GET", "/", client=caller)
    before = request.abandoned
    caller.gone = True
    assert (before, request.abandoned) == (False, True)
    assert not HttpRequest("GET", "/").abandoned


def test_a_request_knows_whether_others_are_to_be_answered_first() -> None:
    caller = Caller()
    request = HttpRequest("GET", "/", client=caller)
    before = request.is_behind
    caller.is_answering = True
    assert (before, request.is_behind) == (False, True)
    assert not HttpRequest("GET", "/").is_behind


def test_a_response_is_framed_by_its_length() -> None:
    response = HttpResponse(201, b'{"id":1}', headers=(("location", "/events/1"), ("x-note", "tab\tand é")))
    assert encode(response, False, CLOSE) == (
        b"HTTP/1.1 201 Created\r\nserver: everbell\r\ncontent-type: application/json\r\ncontent-length: 8\r\n"
        b'connection: close\r\nlocation: /events/1\r\nx-note: tab\tand \xe9\r\n\r\n{"id":1}'
    )


def test_a_head_has_the_length_of_the_body_it_leaves_out() -> None:
    assert encode(HttpResponse(200, b"12345", "text/plain"), True, b"").endswith(b"content-length: 5\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_a_bodiless_response_has_neither_body_nor_length(status: int) -> None:
    data = encode(HttpResponse(status, b"ignored", headers=(("etag", '"1"'),)), False, b"")
    assert data.endswith(b'\r\nserver: everbell\r\netag: "1"\r\n\r\n')
    assert b"content-" not in data


def test_a_status_without_a_phrase_can_be_sent() -> None:
    assert encode(HttpResponse(599), False, b"").startswith(b"HTTP/1.1 599 \r\n")


@pytest.mark.parametrize("status", [0, 99, 100, 101, 199, 600, -200])
def test_only_final_statuses_can_be_sent(status: int) -> None:
    with pytest.raises(ValueError):
        encode(HttpResponse(status), False, b"")


@pytest.mark.parametrize("evil", ["a\r\nset-cookie: b", "a\nb", "a\rb", "a\x00b", "a\x7fb", "snow ☃"])
def test_no_value_can_break_out_of_its_header(evil: str) -> None:
    with pytest.raises(ValueError):
        encode(HttpResponse(200, headers=(("location", evil),)), False, b"")
    with pytest.raises(ValueError):
        encode(HttpResponse(200, content_type=evil), False, b"")


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "é", "Content-Length", "transfer-encoding", "connection"])
def test_no_name_can_break_the_framing(name: str) -> None:
    for _ in range(2):  # A refusal is not remembered as accepted.
        with pytest.raises(ValueError):
            encode(HttpResponse(200, headers=((name, "1"),)), False, b"")


def test_caches_of_responses_are_bounded() -> None:
    for number in range(3000):
        encode(HttpResponse(200, content_type=f"text/{number}", headers=((f"x-{number}", "1"),)), False, b"")
    assert len(message._prefixes) <= 1024
    assert len(message._names) <= 1024


def test_a_problem_has_a_detail() -> None:
    response = problem(409, "Send less.")
    assert response.content_type == "application/problem+json"
    assert json.loads(response.body) == {
        "type": "about:blank",
        "title": "Conflict",
        "status": 409,
        "detail": "Send less.",
    }
