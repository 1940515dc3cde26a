"""Loopback is open for deliveries while a server listens there and has no access keys."""

from __future__ import annotations

import pytest

from everbell.core.access import DOCUMENTS, AccessKey, encode_key
from everbell.core.cluster import Policy
from everbell.node.loopback import Loopback

KEYS = {f"{DOCUMENTS}k1": Policy(1, encode_key(AccessKey("k1", bytes(32), "*", ("read",), 1)))}


def test_loopback_is_open_before_the_first_document_and_closed_by_the_first_key() -> None:
    loopback = Loopback(on_loopback=True, will_have_keys=False)
    assert loopback.is_open(), "events of the store may be due before the server is ready"
    loopback.follow({"shop": Policy(1, b"{}")})
    assert loopback.is_open()
    loopback.follow(KEYS)
    assert not loopback.is_open()


@pytest.mark.parametrize(("on_loopback", "will_have_keys"), [(False, False), (True, True)])
def test_loopback_is_closed_where_others_have_access(on_loopback: bool, will_have_keys: bool) -> None:
    loopback = Loopback(on_loopback=on_loopback, will_have_keys=will_have_keys)
    assert not loopback.is_open()
    loopback.follow({})
    assert not loopback.is_open()
