"""The errors of the decoder, in words."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from everbell.edge.decode_errors import complaint


class Inner(Struct, forbid_unknown_fields=True):
    colour: Literal["red", "green"] = "red"
    size: Annotated[int, Meta(ge=1)] | float | None = None


class Outer(Struct, forbid_unknown_fields=True):
    name: str
    inner: Inner | None = None
    inners: list[Inner] | None = None
    shades: tuple[Literal["dark", "light"], ...] = ()
    words: dict[str, Annotated[str, Meta(max_length=2)]] = {}


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        ("{}", "name", "is missing"),
        ("[]", None, "expected an object, got an array"),
        ('{"name": 1}', "name", "expected a string, got an integer"),
        ('{"nam": ""}', "nam", "there is no such field; did you mean name?"),
        ('{"name": "", "inner": {"color": "red"}}', "inner.color", "there is no such field; did you mean colour?"),
        ('{"name": "", "inner": {"name": 1}}', "inner.name", "there is no such field"),
        ('{"name": "", "inner": {"colour": "blue"}}', "inner.colour", "must be one of green, red"),
        ('{"name": "", "inner": {"size": "x"}}', "inner.size", "expected a number or null, got a string"),
        ('{"name": "", "inners": [{}, {"colour": ""}]}', "inners[1].colour", "must be one of green, red"),
        ('{"name": "", "shades": ["dark", "grey"]}', "shades[1]", "must be one of dark, light"),
        (
            '{"name": "", "inners": [{}, {"colr": ""}]}',
            "inners[1].colr",
            "there is no such field; did you mean colour?",
        ),
        ('{"name": "", "words": {"a": "abc"}}', "words", "expected a string of length <= 2"),
        ('{"name": "", "words": {"a": null}}', "words", "expected a string, got null"),
        ('{"' + "x" * 100 + '": 1}', "x" * 64, "there is no such field"),
    ],
)
def test_a_complaint_names_the_field_and_the_expected_value(text: str, field: str | None, reason: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Outer)
    error = complaint(caught.value, Outer)
    assert (error.field, error.reason) == (field, reason)


def test_a_complaint_about_an_element_of_a_list() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode('[{"name": ""}, {"name": "", "iner": 1}]', type=list[Outer])
    error = complaint(caught.value, list[Outer])
    assert (error.field, error.reason) == ("[1].iner", "there is no such field; did you mean inner?")
