"""What the URL of a PostgreSQL store says."""

from __future__ import annotations

import pytest

from everbell.errors import StoreUnusable
from everbell.stores.postgres_address import read_address

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
def test_all_but_the_schema_is_for_the_driver(url: str, dsn: str, schema: str) -> None:
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
        ("postgresql://u:{}@h/d?schema=Shop", "small letters"),
        ("postgresql://u:{}@h/d?schema=pg_catalog", "small letters"),
        ('postgresql://u:{}@h/d?schema=x";drop', "small letters"),
        ("postgresql://u:{}@h/d?schema", "cannot be read"),
        ("postgresql://u:{}@[h/d", "cannot be read"),
    ],
)
def test_whoever_mistypes_one_learns_how_to_write_it_and_no_password(url: str, advice: str) -> None:
    with pytest.raises(StoreUnusable, match=advice) as refused:
        read_address(url.format(QUOTED))
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_password_is_never_shown() -> None:
    address = read_address(f"postgresql://user:{QUOTED}@h/d")
    assert "hush" not in repr(address)
    assert "hush" not in address.name
    assert QUOTED in address.dsn
