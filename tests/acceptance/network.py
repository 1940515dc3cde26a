"""A private network for a test: a router, a namespace for the services, and a namespace for each node.

    node (10.77.N.2) ── router ── services (10.77.0.2 clients and receivers, 10.77.0.3 the database, 10.77.0.4 the log)

The router drops packets by source and destination, so any two addresses can be cut off from each other, in one
direction or both. All addresses exist only inside the namespaces that the test made, and are removed with them.

Within `with Network(…)` the thread of the test, and the threads that it starts, run in the namespace of the services,
so
clients and receivers need no special code. A server that was started before stays in its own namespace; `bridge` makes
it reachable.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SERVICES = "10.77.0.2"
DATABASE = "10.77.0.3"
LOG = "10.77.0.4"
EVERYWHERE = "10.77.0.0/16"

_NEW_NETWORK = 0x40000000


class Network:
    """Namespaces for nodes, by name."""

    def __init__(self, *nodes: str) -> None:
        self._places = {name: f"everbell-{os.getpid()}-{name}" for name in ("router", "services", *nodes)}
        self._numbers = {name: number for number, name in enumerate(nodes, 1)}
        self._undo = ExitStack()
        self._outside = asyncio.new_event_loop()
        """The thread of this loop stays in the namespace in which the test started."""

    def address(self, node: str) -> str:
        return f"10.77.{self._numbers[node]}.2"

    def inside(self, node: str) -> list[str]:
        """The prefix of a command that runs in a node's namespace and ends as the command does."""
        return ["nsenter", f"--net={file_of(self._places[node])}"]

    def cut(self, source: str, destination: str) -> None:
        """Drop all packets from one address to another."""
        self._router("rule", "add", "from", source, "to", destination, "blackhole")

    def heal(self, source: str, destination: str) -> None:
        """Let these packets pass again."""
        self._router("rule", "del", "from", source, "to", destination, "blackhole")

    def bridge(self, port: int, address: str = DATABASE) -> None:
        """Let nodes reach a loopback port of the machine, as a port of one of these addresses."""
        bridge = _Bridge(port)
        listener = socket.create_server(
            (address, port)
        )  # In this namespace; its connections are forwarded from outside.
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(bridge.connect, sock=listener), self._outside
        ).result(30)
        self._undo.callback(self._outside.call_soon_threadsafe, bridge.close)
        self._undo.callback(self._outside.call_soon_threadsafe, server.close)

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo.close()

    def _build(self) -> None:
        thread = threading.Thread(target=self._outside.run_forever, daemon=True)
        thread.start()
        self._undo.callback(self._outside.close)
        self._undo.callback(thread.join, 30)
        self._undo.callback(self._outside.call_soon_threadsafe, self._outside.stop)
        for place in self._places.values():
            run_ip("netns", "add", place)
            self._undo.callback(run_ip, "netns", "del", place)
            run_ip("-n", place, "link", "set", "lo", "up")
        _run(*self.inside("router"), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        self._lay("services", 0)
        for address in (DATABASE, LOG):
            run_ip("-n", self._places["services"], "addr", "add", f"{address}/24", "dev", "cable")
        for node, number in self._numbers.items():
            self._lay(node, number)
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._undo.callback(os.close, here)
        self._undo.callback(enter, here)
        there = os.open(file_of(self._places["services"]), os.O_RDONLY)
        enter(there)
        os.close(there)

    def _lay(self, name: str, number: int) -> None:
        """Connect a namespace to the router with a cable."""
        place, router = self._places[name], self._places["router"]
        # Created inside the namespace, where the cable's name cannot be in use.
        self._router("link", "add", f"to{number}", "type", "veth", "peer", "name", "cable", "netns", place)
        run_ip("-n", router, "addr", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
        run_ip("-n", router, "link", "set", f"to{number}", "up")
        run_ip("-n", place, "addr", "add", f"10.77.{number}.2/24", "dev", "cable")
        run_ip("-n", place, "link", "set", "cable", "up")
        run_ip("-n", place, "route", "add", "default", "via", f"10.77.{number}.1")

    def _router(self, *command: str) -> None:
        run_ip("-n", self._places["router"], *command)


class _Bridge:
    """Forwards connections from one namespace to another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()

    async def connect(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        far_in, far_out = await asyncio.open_connection("127.0.0.1", self._port)
        pair = {near_out, far_out}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(near_in, far_out), _pump(far_in, near_out))
        finally:
            for writer in pair:
                writer.transport.abort()
            self._writers -= pair

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    sink.transport.abort()


def require_namespaces() -> None:
    """Skip the test if no network can be made; fail it where no test may be skipped."""
    reason = _obstacle()
    if reason and os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def _obstacle() -> str:
    for program, package in {"ip": "iproute2", "nsenter": "util-linux", "sysctl": "procps"}.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (on Debian: apt-get install {package})"
    probe = f"everbell-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    run_ip("netns", "del", probe)
    return ""


def enter(place: int) -> None:
    """Move this thread, and the threads that it starts from now on, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(place, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def file_of(place: str) -> Path:
    return Path("/run/netns", place)


def run_ip(*command: str) -> None:
    _run("ip", *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
