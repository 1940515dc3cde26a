"""Problems become the errors that they were made from."""

from __future__ import annotations

import pytest

from everbell.client.problems import ProblemError, problem_error, retry_after_s
from everbell.errors import (
    Conflict,
    EverbellError,
    InvalidInput,
    MalformedInput,
    NotFound,
    Overloaded,
    Stopping,
    StoreFull,
    TooLarge,
    VersionMismatch,
)
from everbell.http.problem import problem_of

ERRORS: list[EverbellError] = [
    InvalidInput("is odd", "in"),
    InvalidInput("nothing fits"),
    MalformedInput("broken"),
    TooLarge("is large", "payload"),
    NotFound("there is none"),
    Conflict("is over"),
    VersionMismatch("is 3"),
    Overloaded("full", 4),
    Stopping("bye", 2),
    StoreFull("no room"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_through_http(error: EverbellError) -> None:
    response = problem_of(error)
    again = problem_error(response.status, dict(response.headers), response.body)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_problem_without_a_class_keeps_its_status() -> None:
    error = problem_error(418, {}, b'{"type": "https://example.com/teapot", "title": "Teapot", "status": 418}')
    assert isinstance(error, ProblemError)
    assert (error.status, str(error)) == (418, "Teapot")


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (409, Conflict), (422, InvalidInput), (503, Overloaded), (500, ProblemError)]
)
def test_a_foreign_problem_is_judged_by_its_status(status: int, kind: type[EverbellError]) -> None:
    assert type(problem_error(status, {}, b'{"type": "about:blank", "title": "x"}')) is kind


def test_an_answer_that_is_no_problem_is_quoted() -> None:
    error = problem_error(502, {}, b"<h1>Bad\x00 Gateway</h1>")
    assert "status 502: <h1>Bad" in str(error)
    assert str(problem_error(502, {}, b"")) == "the server answered with status 502"


def test_only_seconds_are_understood() -> None:
    assert retry_after_s({"retry-after": " 3 "}) == 3.0
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None
