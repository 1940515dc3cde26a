"""A PostgreSQL for tests: real, durable (fsync is on), with a password, on loopback."""

from __future__ import annotations

import signal
import subprocess
from itertools import count
from pathlib import Path

from tests.services.process import ServerProcess, ServiceMissing

USER = "everbell"
PASSWORD = "pass/word of tests"
_QUOTED_PASSWORD = "pass%2Fword%20of%20tests"
_INSTALLED = Path("/usr/lib/postgresql")

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "log_min_messages": "warning",
    "log_statement": "none",
}


class PostgresServer(ServerProcess):
    """`with PostgresServer() as server:` for a server that a test may stop, kill or freeze; `shared.postgres()` for the
    server that all tests share.
    """

    name = "postgresql"
    user = "postgres"  # The server refuses to run as root.
    end_signal = signal.SIGINT  # A fast shutdown does not wait until clients disconnect.

    def __init__(self) -> None:
        self._bin = _newest_bin()
        super().__init__()
        self._numbers = count(1)

    @property
    def url(self) -> str:
        return self.database_url("postgres")

    def database_url(self, database: str, password: str = _QUOTED_PASSWORD) -> str:
        """The URL of a database of this server."""
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def fresh_schema(self) -> str:
        """The URL of an unused schema, which does not exist yet. Costs nothing."""
        return f"{self.url}?schema=test_{next(self._numbers)}"

    def fresh_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.database_url(name)

    def execute(self, sql: str, database: str = "postgres") -> None:
        """Run a statement as the administrator."""
        address = ["--host=127.0.0.1", f"--port={self.port}", f"--username={USER}", f"--dbname={database}"]
        script = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--command={sql}"]
        self.run(str(self._bin / "psql"), *address, *script, environment={"PGPASSWORD": PASSWORD})

    def prepare(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        options = [f"--username={USER}", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync"]
        self.run(str(self._bin / "initdb"), *options, "--encoding=UTF8", "--locale=C", f"--pgdata={self._data}")

    def command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        return [str(self._bin / "postgres"), "-D", str(self._data), f"--port={self.port}", *settings]

    def is_ready(self) -> bool:
        ask = [str(self._bin / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={self.port}", "--timeout=1"]
        return subprocess.run(ask, check=False).returncode == 0

    @property
    def _data(self) -> Path:
        return self.folder / "data"


class StandbyServer(PostgresServer):
    """A standby that follows another server by streaming, until it is promoted. Start it before the primary is
    configured to wait for it: the standby copies the settings that the primary has at that time.
    """

    name = "postgresql-standby"

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def prepare(self) -> None:
        source = f"--dbname=host=127.0.0.1 port={self._primary.port} user={USER} password='{PASSWORD}'"
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", f"--pgdata={self._data}"]
        self.run(str(self._bin / "pg_basebackup"), source, *options)

    def promote(self) -> None:
        """Accept writes from now on; returns when the server does."""
        self.run(str(self._bin / "pg_ctl"), "promote", f"--pgdata={self._data}", "--wait")


def _newest_bin() -> Path:
    """Debian keeps the servers out of PATH, each major version in a folder of its own."""
    versions = [path for path in _INSTALLED.glob("*/bin") if (path / "postgres").exists()]
    if not versions:
        raise ServiceMissing(f"PostgreSQL is not in {_INSTALLED} (on Debian: apt-get install postgresql)")
    return max(versions, key=lambda path: float(path.parent.name))
