"""Access keys: creation, text, lookup and permissions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.access import (
    DOCUMENTS,
    ID_BYTES,
    SCOPES,
    SECRET_BYTES,
    AccessKey,
    Keyring,
    Scope,
    encode_key,
    key_of,
    keys_in,
    lacks,
    new_key,
)
from everbell.core.cluster import Policy
from everbell.core.tenant import check_tenant_name
from everbell.errors import Conflict, InvalidInput, NotFound

CHANCE = bytes(range(ID_BYTES + SECRET_BYTES))


def made(tenant: str = "shop", *scopes: str, chance: bytes = CHANCE) -> tuple[AccessKey, str]:
    return new_key(chance, tenant, scopes or ("read",), 1_000)


def revoked(key: AccessKey) -> AccessKey:
    return AccessKey(key.id, key.digest, key.tenant, key.scopes, key.created_at, key.note, revoked_at=2_000)


@given(st.binary(min_size=36, max_size=36), st.sets(st.sampled_from(SCOPES), min_size=1))
def test_a_key_opens_by_its_text_and_nothing_of_its_secret_is_kept(chance: bytes, scopes: set[Scope]) -> None:
    key, text = new_key(chance, "shop", scopes, 1_000, "orders")

    assert Keyring([key]).find(f"Bearer {text}") == key
    assert key_of(text, "shop", scopes, 1_000, "orders") == key
    assert text.rpartition("_")[2].encode() not in encode_key(key)


def test_a_secret_has_more_than_enough_chance() -> None:
    assert SECRET_BYTES * 8 >= 128


def test_all_keys_may_be_revoked_but_the_last_operator_s() -> None:
    key, _ = made()
    first, second = (new_key(bytes([n] * len(CHANCE)), "*", ["admin"], 1)[0] for n in (1, 2))
    gone = msgspec.structs.replace(second, revoked_at=2)
    assert Keyring([key, first, second]).revocable(first.id) == first
    ring = Keyring([key, first, gone])
    assert (ring.revocable(key.id), ring.revocable(gone.id)) == (key, gone)
    with pytest.raises(Conflict):
        ring.revocable(first.id)
    with pytest.raises(NotFound):
        ring.revocable("nonsense")


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic {text}",
        "{text}",
        "Bearer {text}x",
        "Bearer x{text}",
        "Bearer {text} {text}",
        "Bearer evk_{other}",
        "Bearer {upper}",
        "Bearer evk__",
        "Bearer {text}\n",
    ],
)
def test_a_text_that_is_not_exactly_a_key_opens_nothing(shown: str) -> None:
    key, text = made()
    _, other = made(chance=CHANCE[:ID_BYTES] + bytes(SECRET_BYTES))  # The same id, another secret.

    shown = shown.format(text=text, other=other.removeprefix("evk_"), upper=text.upper())
    assert Keyring([key]).find(shown) is None


@pytest.mark.parametrize("shown", ["Bearer {}", "bearer {}", "BEARER   {}", " Bearer {} "])
def test_the_scheme_may_be_written_in_any_way(shown: str) -> None:
    key, text = made()
    assert Keyring([key]).find(shown.format(text)) == key


def test_a_revoked_key_opens_nothing_but_is_still_known() -> None:
    key, text = made("*", "admin")
    ring = Keyring([revoked(key)])

    assert ring.find(f"Bearer {text}") is None
    assert ring.get(key.id) is not None
    assert not ring.operators


@pytest.mark.parametrize(
    ("tenant", "scopes", "scope", "where", "may"),
    [
        ("shop", ("read",), "read", "shop", True),
        ("shop", ("read",), "schedule", "shop", False),
        ("shop", ("read",), "work", "shop", False),
        ("shop", ("schedule",), "read", "shop", False),
        ("shop", ("admin",), "read", "shop", True),
        ("shop", ("admin",), "work", "shop", True),
        ("shop", ("admin",), "read", "bank", False),
        ("shop", ("admin",), "admin", None, False),
        ("shop", ("read",), "read", None, False),
        ("shop", ("read",), None, None, True),
        ("*", ("read",), "read", "bank", True),
        ("*", ("read",), "read", None, True),
        ("*", ("read",), "admin", None, False),
        ("*", ("admin",), "admin", None, True),
        ("*", ("admin",), "schedule", "bank", True),
    ],
)
def test_a_key_opens_the_scopes_it_has(
    tenant: str, scopes: tuple[str, ...], scope: Scope | None, where: str | None, may: bool
) -> None:
    key, _ = made(tenant, *scopes)
    assert (lacks(key, scope, where) is None) is may


def test_only_admin_of_all_tenants_is_an_operator() -> None:
    keys = [made("*", "admin")[0], made("shop", "admin")[0], made("*", "read", "schedule", "work")[0]]
    assert [key.is_operator for key in keys] == [True, False, False]


@pytest.mark.parametrize(
    ("tenant", "scopes", "note"),
    [("a/b", ("read",), ""), ("", ("read",), ""), ("shop", (), ""), ("shop", ("root",), ""), ("shop", ("read",), "\n"),
     ("shop", ("read",), "x" * 201)],
)  # fmt: skip
def test_a_key_that_makes_no_sense_is_refused(tenant: str, scopes: tuple[str, ...], note: str) -> None:
    with pytest.raises(InvalidInput):
        new_key(CHANCE, tenant, scopes, 1_000, note)


def test_keys_are_documents_under_names_that_no_tenant_has() -> None:
    first, _ = made()
    second = revoked(made("*", "admin", chance=CHANCE[::-1])[0])
    documents = {
        "shop": Policy(1, b"{}"),
        DOCUMENTS + second.id: Policy(3, encode_key(second)),
        DOCUMENTS + first.id: Policy(2, encode_key(first)),
    }

    assert set(keys_in(documents)) == {first, second}
    with pytest.raises(InvalidInput):
        check_tenant_name(DOCUMENTS + first.id)


def test_a_key_that_a_newer_version_made_opens_nothing_and_is_listed() -> None:
    key, text = made()
    (listed,) = keys_in({DOCUMENTS + key.id: Policy(2, encode_key(key).replace(b"{", b'{"only_on":"mondays",', 1))})

    assert listed.id == key.id
    assert Keyring([listed]).find(f"Bearer {text}") is None
    with pytest.raises(Conflict, match="newer version"):
        Keyring([listed]).revocable(key.id)
    assert listed.revoked_at is None, "where it is understood, it may well open something"
