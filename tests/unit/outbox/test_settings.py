"""URLs of outboxes: the tenant, the name without a password, and refusals that show no secret."""

from __future__ import annotations

import pytest

from everbell.errors import InvalidInput
from everbell.outbox.settings import read_outbox, read_outboxes


def test_a_url_may_name_the_tenant() -> None:
    outbox = read_outbox("postgres://u:p%2Fw@db1,db2:5433/app?sslmode=require&tenant=shop")
    assert outbox.name == "db1,db2:5433/app"
    assert outbox.tenant == "shop"
    assert outbox.dsn == "postgresql://u:p%2Fw@db1,db2:5433/app?sslmode=require"
    assert (outbox.tenant_of(None), outbox.tenant_of("shop")) == ("shop", "shop")
    assert read_outbox("postgresql:///app").tenant_of("blue") == "blue"


def test_several_outboxes_have_blanks_between_them() -> None:
    assert [outbox.name for outbox in read_outboxes("postgresql://a/x postgresql://b/x")] == ["a/x", "b/x"]
    assert read_outboxes("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u:secret@db/app",
        "postgresql://u:secret@db/app?tenant=not+a+name",
        "postgresql://u:sec/ret@db/app",
        "postgresql://u:secret@db/app postgresql://v:secret@db/app",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_outboxes(text)
    assert "sec" not in str(refused.value)
