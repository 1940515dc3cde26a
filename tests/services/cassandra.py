"""An Apache Cassandra for tests: real nodes on loopback, small and durable, alone or as datacentres of one cluster.

Drivers know the nodes of a cluster by their addresses and expect all of them at one port, so the nodes of a cluster
have addresses of their own in 127.0.0.0/8. Each node syncs every write before it answers. A production node does not do
that by default: it relies on replicas on other machines instead.
"""

from __future__ import annotations

import random
import signal
import socket
import struct
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.maven import CASSANDRA, java
from tests.services.process import ServerProcess, ServiceFailed, free_port

USER = "cassandra"
PASSWORD = "cassandra"
CLUSTER = "everbell"

_OPENED = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module java.base/java.lang.reflect java.base/java.math "
    "java.base/java.net java.base/java.nio java.base/java.util java.base/java.util.concurrent "
    "java.base/java.util.concurrent.atomic java.base/jdk.internal.loader java.base/jdk.internal.math "
    "java.base/jdk.internal.misc java.base/jdk.internal.module java.base/jdk.internal.ref "
    "java.base/jdk.internal.reflect java.base/jdk.internal.util.jar java.base/sun.nio.ch "
    "java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server "
    "java.rmi/sun.rmi.transport.tcp java.sql/java.sql jdk.compiler/com.sun.tools.javac.file "
    "jdk.management/com.sun.management.internal jdk.unsupported/sun.misc"
).split()
"""The Java modules that the server needs to open: its own start script has the same list."""

_SETTINGS = """\
cluster_name: {cluster}
num_tokens: 1
initial_token: "{token}"
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
commitlog_sync: group
commitlog_sync_group_window: 1ms
commitlog_segment_size: 16MiB
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{seed}"}}]
listen_address: {address}
rpc_address: {address}
storage_port: {storage_port}
native_transport_port: {port}
endpoint_snitch: GossipingPropertyFileSnitch
auto_bootstrap: false
auto_snapshot: false
paxos_variant: v2
authenticator: {authenticator}
authorizer: {authorizer}
data_file_directories: [{folder}/data]
commitlog_directory: {folder}/commitlog
saved_caches_directory: {folder}/caches
hints_directory: {folder}/hints
concurrent_writes: 128
concurrent_reads: 16
hinted_handoff_throttle: 16MiB
"""
_TLS = """\
client_encryption_options:
  enabled: true
  optional: true
  keystore: {folder}/server.p12
  keystore_password: everbell
  store_type: PKCS12
"""
_LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss.SSS} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
_STARTUP, _QUERY, _AUTH_RESPONSE = 0x01, 0x07, 0x0F
_READY, _AUTHENTICATE, _RESULT, _AUTH_SUCCESS = 0x02, 0x03, 0x08, 0x10
_TOKENS = 1 << 64


class CassandraServer(ServerProcess):
    """`with CassandraServer() as server:` for a server that a test may stop, kill or freeze; `shared.cassandra()` for
    the server that all tests share.
    """

    name = "cassandra"
    end_signal = signal.SIGTERM
    patience_s = 240.0  # Three servers start on two busy cores.

    def __init__(self, heap_mb: int = 768) -> None:
        self._java, self._classpath = java(), CASSANDRA.classpath
        super().__init__()
        self.address = "127.0.0.1"
        self.datacenter = "dc1"
        self.seed = ""
        self.storage_port = free_port()
        self.token = 0
        self.has_password = True
        self.has_tls = False
        """Whether the server also speaks TLS, at the same port."""
        self._heap_mb = heap_mb
        self._numbers = count(1)

    @property
    def url(self) -> str:
        return self.keyspace_url("everbell")

    def keyspace_url(self, keyspace: str, user: str = USER, password: str = PASSWORD) -> str:
        """The URL of a keyspace of this server."""
        return f"cassandra://{user}:{password}@{self.address}:{self.port}/{keyspace}?datacenter={self.datacenter}"

    @property
    def authority(self) -> Path:
        """The certificate of the authority that signed the server's certificate."""
        return self.folder / "authority.pem"

    def fresh_store(self) -> str:
        """The URL of an unused store, in tables that all stores share: creating tables takes seconds."""
        return f"{self.url}&store=test_{next(self._numbers)}"

    def fresh_keyspace(self) -> str:
        """The URL of a keyspace that does not exist yet."""
        return self.keyspace_url(f"test_{next(self._numbers)}")

    def execute(self, cql: str) -> int:
        """Run a statement as the administrator; returns the number of rows."""
        return _ask(self.address, self.port, cql)

    def prepare(self) -> None:
        secured = "org.apache.cassandra.auth."
        settings = _SETTINGS.format(
            cluster=CLUSTER,
            token=self.token,
            seed=f"{self.seed or self.address}:{self.storage_port}",
            address=self.address,
            storage_port=self.storage_port,
            port=self.port,
            folder=self.folder,
            authenticator="PasswordAuthenticator" if self.has_password else "AllowAllAuthenticator",
            authorizer=f"{secured}CassandraAuthorizer" if self.has_password else f"{secured}AllowAllAuthorizer",
        )
        if self.has_tls:
            self._make_certificates()
            settings += _TLS.format(folder=self.folder)
        (self.folder / "cassandra.yaml").write_text(settings)
        (self.folder / "cassandra-rackdc.properties").write_text(f"dc={self.datacenter}\nrack=r1\n")
        (self.folder / "logback.xml").write_text(_LOGGING)
        (self.folder / "tmp").mkdir()

    def _make_certificates(self) -> None:
        new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        signed = "-CA authority.pem -CAkey authority.key -CAcreateserial"
        for options in (
            f"req -x509 {new_key} -subj /CN=authority -days 2 -keyout authority.key -out authority.pem",
            f"req {new_key} -subj /CN=cassandra -keyout server.key -out server.csr",
            f"x509 -req -in server.csr {signed} -days 2 -out server.pem",
            "pkcs12 -export -in server.pem -inkey server.key -passout pass:everbell -out server.p12",
        ):
            self.run("openssl", *options.split())

    def command(self) -> list[str]:
        modules = [
            option
            for name in _OPENED
            for option in ("--add-exports", f"{name}=ALL-UNNAMED", "--add-opens", f"{name}=ALL-UNNAMED")
        ]
        memory = [
            "-XX:TieredStopAtLevel=1",
            f"-Xms{self._heap_mb}m",
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-Xss384k",
        ]
        properties = {
            "cassandra.config": f"file://{self.folder}/cassandra.yaml",
            "cassandra-rackdc.properties": f"file://{self.folder}/cassandra-rackdc.properties",
            "logback.configurationFile": f"{self.folder}/logback.xml",
            "cassandra.storagedir": str(self.folder),
            "cassandra-foreground": "yes",
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            # How long a node waits for the first answer of another node; a busy machine needs longer than the default.
            "cassandra.ring_delay_ms": "60000",
            "cassandra.superuser_setup_delay_ms": "0",
            "jdk.attach.allowAttachSelf": "true",
            "java.io.tmpdir": f"{self.folder}/tmp",
        }
        named = [f"-D{name}={value}" for name, value in properties.items()]
        main = "org.apache.cassandra.service.CassandraDaemon"
        return [self._java, *modules, *memory, *named, "-cp", self._classpath, main]

    def is_ready(self) -> bool:
        """Whether the server accepts the login and answers."""
        try:
            return self.execute("SELECT key FROM system.local") == 1
        except (OSError, ServiceFailed, struct.error):
            return False


class CassandraCluster:
    """Nodes in datacentres: `CassandraCluster({"dc1": 2, "dc2": 1})`. The cluster has no passwords, because Cassandra
    stores them on one replica and would lose them with it.
    """

    def __init__(self, sizes: Mapping[str, int], heap_mb: int = 512) -> None:
        prefix = f"127.{random.randrange(10, 250)}.{random.randrange(1, 250)}"
        port, storage_port = free_port(), free_port()
        names = [name for name, size in sizes.items() for _ in range(size)]
        self.nodes: list[CassandraServer] = []
        for number, name in enumerate(names, 1):
            node = CassandraServer(heap_mb)
            node.address, node.seed, node.datacenter = f"{prefix}.{number}", f"{prefix}.1", name
            node.port, node.storage_port, node.has_password = port, storage_port, False
            node.token = -_TOKENS // 2 + _TOKENS * (number - 1) // len(names)
            self.nodes.append(node)

    def of(self, datacenter: str) -> list[CassandraServer]:
        """The nodes of a datacentre."""
        return [node for node in self.nodes if node.datacenter == datacenter]

    def url(self, datacenter: str, keyspace: str = "everbell") -> str:
        """The URL for a client in a datacentre; a keyspace that this client creates has a replica on every node."""
        hosts = ",".join(f"{node.address}:{node.port}" for node in self.of(datacenter))
        names = sorted({node.datacenter for node in self.nodes})
        copies = ",".join(f"{name}:{len(self.of(name))}" for name in names)
        return f"cassandra://{hosts}/{keyspace}?datacenter={datacenter}&replication={copies}"

    def __enter__(self) -> Self:
        try:
            # One after the other: nodes that join at the same time may not learn of each other.
            for started, node in enumerate(self.nodes, 1):
                node.start()
                self._until_known(self.nodes[:started])
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def _until_known(self, nodes: list[CassandraServer]) -> None:
        for node in nodes:
            node.until(partial(_knows, node, len(nodes) - 1), "a member of the cluster")

    def remove(self) -> None:
        """End all nodes, and remove their data."""
        for node in self.nodes:
            node.remove()


def _knows(node: CassandraServer, others: int) -> bool:
    return node.execute("SELECT peer FROM system.peers_v2") == others


def _ask(address: str, port: int, cql: str) -> int:
    """Log in and run one statement; returns the number of rows. The protocol is `native_protocol_v4`."""
    with socket.create_connection((address, port), timeout=10) as connection, connection.makefile("rb") as answers:
        connection.settimeout(10)

        def exchange(code: int, body: bytes) -> tuple[int, bytes]:
            connection.sendall(struct.pack(">BBhBi", 4, 0, 0, code, len(body)) + body)
            _version, _flags, _stream, answer, size = struct.unpack(">BBhBi", answers.read(9))
            return answer, answers.read(size)

        code, body = exchange(_STARTUP, struct.pack(">h", 1) + _text("CQL_VERSION") + _text("3.0.0"))
        if code == _AUTHENTICATE:
            secret = f"\0{USER}\0{PASSWORD}".encode()
            code, body = exchange(_AUTH_RESPONSE, struct.pack(">i", len(secret)) + secret)
        if code not in (_READY, _AUTH_SUCCESS):
            raise ServiceFailed(f"cassandra refused the login: {body!r}")
        raw = cql.encode()
        code, body = exchange(_QUERY, struct.pack(">i", len(raw)) + raw + struct.pack(">hB", 1, 0))
        if code != _RESULT:
            raise ServiceFailed(f"cassandra refused {cql}: {body[6:]!r}")
        return _count_rows(body)


def _count_rows(body: bytes) -> int:
    kind, flags, columns = struct.unpack_from(">iii", body) if body[3] == 2 else (0, 0, 0)
    if kind != 2:
        return 0
    assert flags & 1, "all columns are of one table"
    place = 12
    for _ in range(2):
        place = _after_text(body, place)
    for _ in range(columns):
        place = _after_text(body, place) + 2  # All columns have a simple type.
    (rows,) = struct.unpack_from(">i", body, place)
    return int(rows)


def _after_text(body: bytes, place: int) -> int:
    return place + 2 + int(struct.unpack_from(">h", body, place)[0])


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
