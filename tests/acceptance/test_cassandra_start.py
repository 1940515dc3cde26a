"""The errors of a start on Cassandra: each tells the operator how to fix it, and none contains a password. Also, how
many nodes that start at once create the tables.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from everbell.entropy import SystemEntropy
from everbell.errors import StoreError, StoreUnavailable, StoreUnusable
from everbell.stores.cassandra.address import read_address
from everbell.stores.cassandra.session import CassandraSession
from everbell.stores.cassandra.store import CassandraStore
from everbell.stores.cassandra.tables import agree, id_of, make_tables
from tests.services import shared
from tests.services.cassandra import CassandraServer

_MADE = "SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = '{}'"


@pytest.fixture(scope="module")
def server() -> CassandraServer:
    return shared.cassandra()


def complaint(url: str, kind: type[StoreError], partitions: int = 4) -> str:
    with pytest.raises(kind) as refused:
        CassandraStore(url, partitions=partitions, patience_s=0)
    assert "wrong-password" not in str(refused.value)
    return str(refused.value)


def test_an_address_without_a_server_is_reported(server: CassandraServer) -> None:
    assert "cannot be reached" in complaint("cassandra://127.0.0.1:1/everbell", StoreUnavailable)
    assert "cannot be reached" in complaint("cassandra://nobody.invalid/everbell", StoreUnavailable)


def test_an_unknown_datacenter_is_reported(server: CassandraServer) -> None:
    url = server.url.replace("datacenter=dc1", "datacenter=nowhere")
    assert "correct datacenter=" in complaint(url, StoreUnusable)


def test_a_wrong_password(server: CassandraServer) -> None:
    url = server.keyspace_url("everbell", password="wrong-password")
    assert "correct the user and the password" in complaint(url, StoreUnusable)


def test_a_user_without_permission_is_told_how_to_get_the_keyspace(server: CassandraServer) -> None:
    server.execute("CREATE ROLE IF NOT EXISTS guest WITH PASSWORD = 'guest' AND LOGIN = true")
    told = complaint(server.keyspace_url("not_allowed", "guest", "guest"), StoreUnusable)
    assert "GRANT" in told
    assert "make the keyspace not_allowed beforehand" in told


def test_a_store_of_a_newer_format_or_another_partition_count_is_refused(server: CassandraServer) -> None:
    url = server.fresh_store()
    asyncio.run(CassandraStore(url, partitions=4).close())
    assert "was made with 4 partitions" in complaint(url, StoreUnusable, partitions=8)
    name = url.rpartition("=")[2]
    server.execute(f"UPDATE everbell.stores SET format = 9 WHERE store = '{name}' IF EXISTS")
    assert "install a newer version" in complaint(url, StoreUnusable)


def test_all_tables_follow_from_one_seed(server: CassandraServer) -> None:
    """One node of Cassandra cannot create two tables of one name. The ids show which tables two nodes would create."""
    address = read_address(server.fresh_keyspace())

    async def scenario() -> None:
        link = CassandraSession(address, keyspace=False, briefly=True)
        try:
            await make_tables(address, "everbell.logs", "cassandra_1.cql", SystemEntropy())
            made = {name: str(table_id) for name, table_id in await link.run(_MADE.format(address.keyspace))}
            seed, is_ours = await agree(link, "everbell.logs", SystemEntropy())
            assert not is_ours
            names = {"log_entries", "log_heads", "log_leases", "log_snapshots"}
            assert made == {name: id_of(name, seed) for name in names} | {"seeds": made["seeds"]}
        finally:
            await link.close()

    asyncio.run(scenario())


def test_a_cancelled_connect_ends() -> None:
    """Without our handling, the driver waits for its own threads for ever when it is interrupted then."""

    async def scenario() -> None:
        arrived = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as nobody:
            port = nobody.sockets[0].getsockname()[1]
            link = CassandraSession(read_address(f"cassandra://127.0.0.1:{port}/everbell"), briefly=True)
            asking = asyncio.create_task(link.run("SELECT key FROM system.local"))
            await arrived.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(scenario())


def test_tls_accepts_only_the_given_authority(server: CassandraServer, tmp_path: Path) -> None:
    url = server.fresh_store()
    stranger = tmp_path / "stranger.pem"
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=authority -days 2 -keyout"
    subprocess.run(["openssl", *new.split(), str(tmp_path / "key"), "-out", str(stranger)], check=True)

    assert "by ca= in the URL" in complaint(f"{url}&ca={stranger}", StoreUnusable)
    assert "cannot be read" in complaint(f"{url}&ca={tmp_path}/nothing", StoreUnusable)
    (tmp_path / "empty").write_text("")
    assert "certificates in PEM" in complaint(f"{url}&ca={tmp_path}/empty", StoreUnusable)

    async def protocols(store: CassandraStore) -> set[object]:
        try:
            mine = await store._link.run("SELECT driver_name, ssl_enabled FROM system_views.clients")
            return {is_on for _, is_on in mine}
        finally:
            await store.close()

    # Other clients are connected without TLS.
    assert True in asyncio.run(protocols(CassandraStore(f"{url}&ca={server.authority}", partitions=4)))
    assert True in asyncio.run(protocols(CassandraStore(f"{url}&tls=on", partitions=4)))
