"""An Apache Kafka for tests: one process that is broker and controller (KRaft), on loopback, durable topics.

Asking for a topic does not create it: a test creates the topics that it needs, as an operator does in a carefully run
cluster.

The server has two listeners: one without authentication, and one with TLS and a name and password (SASL).
"""

from __future__ import annotations

import signal
import socket
import struct
from itertools import count
from pathlib import Path

from tests.services.maven import KAFKA, java
from tests.services.process import ServerProcess, free_port

_CLUSTER = "everbell-tests-kafka-1"  # Kafka requires 22 characters.
_METADATA, _METADATA_VERSION = 3, 1
USER, PASSWORD = "everbell", "opensesame-17"
_CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
    "-subj /CN=kafka -addext subjectAltName=IP:127.0.0.1"
)

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={folder}/keystore.pem
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
log.dirs={folder}/data
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=200
initial.broker.registration.timeout.ms=120000
"""


class KafkaServer(ServerProcess):
    """`with KafkaServer() as server:` for a server that a test may stop, kill or freeze; `shared.kafka()` for the
    server that all tests share.
    """

    name = "kafka"
    end_signal = signal.SIGTERM
    patience_s = 180.0
    """On an overloaded machine, Java takes a minute to start."""

    def __init__(self, heap_mb: int = 384, session_ms: int = 30_000) -> None:
        """`session_ms` is how long the controller waits for a heartbeat of the broker before it takes all topics from
        it. A killed broker comes back after that time, so a short session makes restarts quick. A long session keeps a
        slow broker on a busy machine from being declared dead.
        """
        self._java, self._classpath = java(), KAFKA.classpath
        super().__init__()
        self._controller_port = free_port()
        self._secure_port = free_port()
        self._heap_mb = heap_mb
        self._session_ms = session_ms
        self._numbers = count(1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def secure_address(self) -> str:
        """The address that accepts `USER` with `PASSWORD`, over TLS."""
        return f"127.0.0.1:{self._secure_port}"

    @property
    def authority(self) -> Path:
        """The certificate that clients must trust: the server signed its own."""
        return self.folder / "certificate.pem"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def fresh_name(self) -> str:
        """An unused name for a topic or a group."""
        return f"test-{next(self._numbers)}"

    def prepare(self) -> None:
        settings = self.folder / "server.properties"
        ports = {"port": self.port, "secure_port": self._secure_port, "controller_port": self._controller_port}
        given = {"folder": self.folder, "session_ms": self._session_ms, "user": USER, "password": PASSWORD}
        settings.write_text(_SETTINGS.format(**ports, **given))
        key = self.folder / "key.pem"
        self.run("openssl", *_CERTIFICATE.split(), "-keyout", str(key), "-out", str(self.authority))
        (self.folder / "keystore.pem").write_text(key.read_text() + self.authority.read_text())
        formatting = ["kafka.tools.StorageTool", "format", "--cluster-id", _CLUSTER, "--config", str(settings)]
        self.run(self._java, "-XX:TieredStopAtLevel=1", *self._program(), *formatting)

    def command(self) -> list[str]:
        memory = [f"-Xmx{self._heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [self._java, *memory, *self._program(), "kafka.Kafka", str(self.folder / "server.properties")]

    def is_ready(self) -> bool:
        """Whether the server names itself as the broker and as the controller."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.settimeout(2)
                return _has_broker(_asked_metadata(connection))
        except (OSError, struct.error):
            return False

    def _program(self) -> list[str]:
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
        return [*logging, "-cp", self._classpath]


def _asked_metadata(connection: socket.socket) -> bytes:
    """The answer to a metadata request for all brokers and no topics."""
    client = b"ready"
    request = struct.pack(">hhih", _METADATA, _METADATA_VERSION, 1, len(client)) + client + struct.pack(">i", 0)
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as answers:
        (size,) = struct.unpack(">i", answers.read(4))
        return answers.read(size)


def _has_broker(answer: bytes) -> bool:
    """The number of brokers follows the number of the request."""
    _request, brokers = struct.unpack_from(">ii", answer)
    return bool(brokers > 0)
