"""The document that describes the API."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, cast

import msgspec

from everbell.api.application import Api
from everbell.clock import SystemClock
from everbell.core.health import Health
from everbell.core.spec import EventSpec, draft
from everbell.core.tenant import Tenant, Tenants
from reference.routes import document

API = Api(cast(Any, None), Tenants(), SystemClock(), lambda: Health("ready"), str)


def references(part: Any) -> Iterator[str]:
    """Every `$ref` in a document."""
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from references(inner)


def test_every_route_is_described_once() -> None:
    described = [
        (operation["operationId"], method.upper(), path)
        for path, methods in API.document["paths"].items()
        for method, operation in methods.items()
    ]
    assert sorted(described) == sorted((route.name, route.method, route.path) for route in API.routes)
    assert len({name for name, _, _ in described}) == len(described)


def test_every_reference_leads_somewhere() -> None:
    schemas = API.document["components"]["schemas"]
    assert {reference.rpartition("/")[2] for reference in references(API.document)} <= set(schemas)


def test_every_path_parameter_is_described() -> None:
    for path, methods in API.document["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == {segment[1:-1] for segment in path.split("/") if segment.startswith("{")}


def test_the_example_of_an_event_is_one() -> None:
    (example,) = API.document["components"]["schemas"]["EventSpec"]["examples"]
    assert draft(msgspec.json.decode(msgspec.json.encode(example), type=EventSpec), Tenant(), 0).id == example["id"]


def test_every_answer_of_an_error_is_a_problem() -> None:
    for methods in API.document["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert "application/problem+json" in response["content"], (operation["operationId"], status)


def test_descriptions_are_the_same_on_every_python() -> None:
    """Docstrings have no indentation from Python 3.13 on, and all of it before."""
    schemas = document()["components"]["schemas"].values()
    descriptions = [schema["description"] for schema in schemas if "description" in schema]
    assert any("\n" in description for description in descriptions)
    assert descriptions == [cleandoc(description) for description in descriptions]
