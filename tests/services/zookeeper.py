"""A ZooKeeper for tests: one real server on loopback that allows short sessions."""

from __future__ import annotations

import shutil
import signal
import socket
from itertools import count
from pathlib import Path

from tests.services.process import ServerProcess, ServiceMissing

_JAR = Path("/usr/share/java/zookeeper.jar")
_LOGGER_JAR = _JAR.with_name("slf4j-simple.jar")
_HEAD_BYTES = 16

# Session time-outs are rounded to ticks, and the shortest session takes two ticks.
_SETTINGS = """\
tickTime=100
minSessionTimeout=200
maxSessionTimeout=60000
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""


class ZookeeperServer(ServerProcess):
    """`with ZookeeperServer() as server:` for a server that a test may stop, kill or freeze; `shared.zookeeper()` for
    the server that all tests share.
    """

    name = "zookeeper"
    end_signal = signal.SIGTERM

    def __init__(self) -> None:
        if not _JAR.exists():
            raise ServiceMissing(f"ZooKeeper is not in {_JAR} (on Debian: apt-get install libzookeeper-java)")
        self._java = shutil.which("java")
        if self._java is None:
            raise ServiceMissing("ZooKeeper needs java (on Debian: apt-get install default-jre-headless)")
        super().__init__()
        self._numbers = count(1)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"zookeeper://{self.address}/everbell"

    def fresh_path(self) -> str:
        """The URL of an unused path, which does not exist yet. Costs nothing."""
        return f"zookeeper://{self.address}/test-{next(self._numbers)}"

    def prepare(self) -> None:
        (self.folder / "zoo.cfg").write_text(_SETTINGS.format(folder=self.folder, port=self.port))

    def start(self) -> str:
        """Start the server, like every server. If ZooKeeper was killed between creating a log and writing its head, it
        does not start again by itself (ZOOKEEPER-1621). So the empty file is deleted first, as an administrator would
        do.
        """
        for log in (self.folder / "data" / "version-2").glob("log.*"):
            with log.open("rb") as file:
                is_empty = not file.read(_HEAD_BYTES).strip(b"\0")
            if is_empty:
                log.unlink()
        return super().start()

    def command(self) -> list[str]:
        assert self._java is not None
        # The cheapest options of Java: the server starts in a second, and a test asks little of it.
        machine = ["-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        logging = ["-Dzookeeper.jmx.log4j.disable=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        classes = ["-cp", f"{_JAR}:{_LOGGER_JAR}"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return [self._java, *machine, *logging, *classes, main, str(self.folder / "zoo.cfg")]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return b"Mode:" in connection.makefile("rb").read()
        except OSError:
            return False
