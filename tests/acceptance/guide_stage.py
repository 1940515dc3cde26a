"""The applications of the guides, as real processes: their files, their web server, their workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.acceptance.processes import PATIENCE_S, Finished, RunningCommand, quiet_environment

_FILE = re.compile(r"`([\w/.]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVE = """
import sys
from importlib import import_module
from wsgiref.simple_server import WSGIRequestHandler, make_server
sys.path.insert(0, "")
class Quiet(WSGIRequestHandler):
    def log_message(self, *arguments): pass
module, _, name = sys.argv[1].partition(":")
server = make_server("127.0.0.1", 0, getattr(import_module(module), name), handler_class=Quiet)
print(server.server_port, flush=True)
server.serve_forever()
"""


def write_files(guide: Path, folder: Path, changes: Mapping[str, str]) -> list[str]:
    """Write the files that a guide shows, with some words replaced; returns their names."""
    files = dict(_FILE.findall(guide.read_text()))
    for name, text in files.items():
        for word, other in changes.items():
            text = text.replace(word, other)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return list(files)


def database_variables(url: str) -> dict[str, str]:
    """The variables of PostgreSQL's own programs, for one database."""
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGDATABASE": parts.path.strip("/"),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
    }


class GuideApplication:
    """An application in a folder, with an environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = quiet_environment() | dict(environment)

    def run(self, *arguments: str) -> Finished:
        """Run Python with these arguments, to its end."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def begin(self, *arguments: str) -> RunningCommand:
        """Start Python with these arguments."""
        return RunningCommand([sys.executable, *arguments], self._environment, self.folder)

    def serve(self, place: str) -> RunningCommand:
        """Start a web server for `module:application`. Its first line is its port."""
        return self.begin("-c", _SERVE, place)


def call(port: str, path: str, method: str = "POST") -> tuple[int, Any]:
    """Ask the web server; returns the status, and the answer, which is JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
