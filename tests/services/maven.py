"""Servers that come as Java archives: fetched with Maven, once, into a folder that all clones share.

- The version is part of the folder's name. An existing folder is complete, because it is filled under another name and
  renamed at the end. Two processes that fetch at the same time both succeed.
- The folder is `everbell/` in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`): a new clone costs no download.
- Maven reads its own settings, so it uses a mirror that the machine has configured.

`python -m tests.services.maven` fetches all distributions; `make services-installed` runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.services.process import ServiceMissing

PATIENCE_S = 600.0
_SAID = 2_000

_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>everbell</groupId>
  <artifactId>services</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

_DEPENDENCY = """\
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A server and its libraries, as coordinates `group:artifact:version`; Maven adds their dependencies."""

    name: str
    version: str
    coordinates: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the archives, once they are fetched."""
        return _cache_folder() / f"{self.name}-{self.version}"

    @property
    def classpath(self) -> str:
        """The argument of `java -cp`; fetches the archives if they are missing."""
        return f"{fetched(self)}/*"


# The second archive writes the server's logs: the first one contains only the logging interface.
KAFKA = Distribution("kafka", "4.1.0", ("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36"))

CASSANDRA = Distribution("cassandra", "5.0.2", ("org.apache.cassandra:cassandra-all:5.0.2",))

DISTRIBUTIONS = (KAFKA, CASSANDRA)


def java() -> str:
    """The path of the Java program."""
    if program := shutil.which("java"):
        return program
    raise ServiceMissing("java is not installed (on Debian: apt-get install default-jre-headless)")


@cache
def fetched(distribution: Distribution) -> Path:
    """The folder with the archives of a distribution, fetched if they are missing."""
    folder = distribution.folder
    if not folder.exists():
        _fetch(distribution, folder)
    return folder


def _fetch(distribution: Distribution, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceMissing(f"{distribution.name} is fetched with mvn (on Debian: apt-get install maven)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        project, archives = Path(work, "pom.xml"), Path(work, "archives")
        lines = (_DEPENDENCY.format(*coordinate.split(":")) for coordinate in distribution.coordinates)
        project.write_text(_PROJECT.format(dependencies="\n".join(lines)))
        options = ["--batch-mode", "--quiet", f"--file={project}", "-DincludeScope=runtime"]
        _run([maven, *options, "dependency:copy-dependencies", f"-DoutputDirectory={archives}"], distribution)
        try:
            archives.rename(folder)
        except OSError:
            if not folder.exists():  # Otherwise another process has fetched the same archives.
                raise


def _run(command: list[str], distribution: Distribution) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise ServiceMissing(f"{distribution.name} could not be fetched: mvn took over {PATIENCE_S:.0f} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr)[:_SAID]
        raise ServiceMissing(f"{distribution.name} {distribution.version} could not be fetched by mvn:\n{said}")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everbell"


def main() -> None:
    try:
        for distribution in DISTRIBUTIONS:
            fetched(distribution)
    except ServiceMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
