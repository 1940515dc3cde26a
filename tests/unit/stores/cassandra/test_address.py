"""The URL of a store in Cassandra. Messages about wrong ones contain no password."""

from __future__ import annotations

import pytest

from everbell.errors import StoreUnusable
from everbell.stores.cassandra.address import read_address


def test_all_options_of_a_url_are_read() -> None:
    address = read_address(
        "cassandra://me:pa%2Fss@a.example:9043,b.example:9043/bells?datacenter=dc1&replication=dc1:3,dc2:2"
        "&store=one&serial=local_serial&shard_events=50&ca=/etc/ca.pem"
    )
    assert (address.hosts, address.port, address.keyspace) == (("a.example", "b.example"), 9043, "bells")
    assert (address.user, address.password, address.datacenter) == ("me", "pa/ss", "dc1")
    assert (address.replication, address.store, address.shard_events) == ({"dc1": 3, "dc2": 2}, "one", 50)
    assert (address.is_local, address.tls, address.ca) == (True, True, "/etc/ca.pem")
    assert "pa/ss" not in repr(address) + address.name


def test_most_options_have_defaults() -> None:
    address = read_address("cassandra://[::1]/everbell")
    assert (address.hosts, address.port, address.store) == (("::1",), 9042, "everbell")
    assert (address.datacenter, address.replication, address.is_local, address.tls) == ("", {}, False, False)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("cassandra://host", "names no keyspace"),
        ("cassandra://host/Big", "names no keyspace"),
        ("cassandra:///everbell", "no host"),
        ("cassandra://a b/everbell", "no host"),
        ("cassandra://a:1,b:2/everbell", "one port"),
        ("cassandra://a:99999/everbell", "one port"),
        ("cassandra://a/everbell?colour=red", "'colour'"),
        ("cassandra://a/everbell?replication=3", "as in dc1:3,dc2:3"),
        ("cassandra://a/everbell?serial=QUORUM", "SERIAL or LOCAL_SERIAL"),
        ("cassandra://a/everbell?shard_events=0", "from 1 to 100000"),
        ("cassandra://a/everbell?store=a/b", "1 to 64"),
        ("cassandra://me:secret/word@a/everbell", "no host"),
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url: str, complaint: str) -> None:
    with pytest.raises(StoreUnusable) as refused:
        read_address(url)
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)
