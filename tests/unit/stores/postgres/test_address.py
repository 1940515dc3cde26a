"""The URL of a store in PostgreSQL."""

from __future__ import annotations

import pytest

from everbell.errors import StoreUnusable
from everbell.stores.postgres.address import read_address

SECRET = "hush/hush"
QUOTED = "hush%2Fhush"


@pytest.mark.parametrize(
    ("url", "dsn", "schema"),
    [
        ("postgresql://u@h/d", "postgresql://u@h/d?", "everbell"),
        ("postgres://u@h:1/d?schema=a_1", "postgresql://u@h:1/d?", "a_1"),
        ("postgresql://u@h:1,g:2/d?sslmode=require&schema=x", "postgresql://u@h:1,g:2/d?sslmode=require", "x"),
        ("postgresql://u@[::1]:5432/d", "postgresql://u@[::1]:5432/d?", "everbell"),
        ("postgresql:///d", "postgresql:///d?", "everbell"),
        ("postgresql://?host=/run/postgresql", "postgresql://?host=%2Frun%2Fpostgresql", "everbell"),
    ],
)
def test_the_driver_gets_all_options_except_the_schema(url: str, dsn: str, schema: str) -> None:
    address = read_address(url)
    assert (address.dsn, address.schema) == (dsn, schema)
    assert f"schema {schema}" in address.name


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql://", "names no database"),
        ("postgresql://u:{}@h:port/d", "host:port"),
        ("postgresql://u:hush/hush@h/d", "host:port"),
        ("postgresql://u:1/hush@h/d", "host:port"),
        ("postgresql://u:{}@h/d?schema=Shop", "lower-case letters"),
        ("postgresql://u:{}@h/d?schema=pg_catalog", "lower-case letters"),
        ('postgresql://u:{}@h/d?schema=x";drop', "lower-case letters"),
        ("postgresql://u:{}@h/d?schema", "cannot be read"),
        ("postgresql://u:{}@[h/d", "cannot be read"),
    ],
)
def test_a_wrong_url_is_refused_with_an_example_and_without_the_password(url: str, advice: str) -> None:
    with pytest.raises(StoreUnusable, match=advice) as refused:
        read_address(url.format(QUOTED))
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_password_is_never_shown() -> None:
    address = read_address(f"postgresql://user:{QUOTED}@h/d")
    assert "hush" not in repr(address)
    assert "hush" not in address.name
    assert QUOTED in address.dsn
