"""One client, or one tenant, cannot take from the others what they need: bodies, answers, names."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.machine import Machine, until
from tests.acceptance.name_server import NameServer
from tests.acceptance.processes import CommandLine
from tests.acceptance.receiver import Receiver

LARGEST = 16 * 1024 * 1024
BATCH = "/v1/tenants/shop/events/batch"


@pytest.fixture(params=["0", "1"], ids=["one process", "a gateway"])
def guarded(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A server with access keys, and a token of an operator."""
    key = tmp_path / "key"
    with Machine(tmp_path, "--gateways", request.param, "--bootstrap-key", str(key)) as machine:
        machine.token = key.read_text().strip()
        yield machine


def begin_body(machine: Machine, key: str) -> socket.socket:
    """Send the largest body but for its last byte. The server may close the connection meanwhile."""
    address = urlsplit(machine.url)
    client = socket.create_connection((str(address.hostname), address.port or 0), timeout=60)
    access = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {BATCH} HTTP/1.1\r\nhost: {address.netloc}\r\n{access}content-type: application/json\r\n"
    with suppress(ConnectionError):
        client.sendall(f"{head}content-length: {LARGEST}\r\n\r\n".encode() + b"[" + b" " * (LARGEST - 2))
    return client


def key_for(machine: Machine, tenant: str) -> str:
    made = CommandLine(machine.url)("keys", "create", "--tenant", tenant, "--token", machine.token)
    assert made.code == 0, made
    return made.out.strip()


@pytest.mark.parametrize("has_key", [False, True], ids=["strangers", "one key"])
def test_clients_that_never_finish_their_bodies_keep_no_other_client_out(guarded: Machine, has_key: bool) -> None:
    greedy = key_for(guarded, "shop") if has_key else ""
    with ExitStack() as clients:
        for _ in range(12):
            clients.enter_context(begin_body(guarded, greedy))
        body = [{"in": "1h", "to": "queue:a", "payload": "x" * 1_000} for _ in range(1_000)]
        for _ in range(5):
            assert guarded.call("POST", BATCH.replace("shop", "bank"), body).status == 201


def test_answers_that_are_not_read_take_a_bounded_amount_of_memory(guarded: Machine) -> None:
    body = [{"in": "1h", "to": "queue:a", "payload": "x" * 4_000} for _ in range(1_000)]
    assert guarded.call("POST", BATCH, body).status == 201
    page = guarded.call("GET", "/v1/tenants/shop/events?limit=1000").body
    assert len(page) > 3_000_000
    address = urlsplit(guarded.url)
    pids = [guarded.process.pid, *map(int, children_of(guarded.process.pid))]
    before = sum(map(rss_of, pids))
    request = f"GET /v1/tenants/shop/events?limit=1000 HTTP/1.1\r\nhost: {address.netloc}\r\n"
    request += f"authorization: Bearer {guarded.token}\r\n\r\n"
    with ExitStack() as clients:
        for _ in range(150):
            client = clients.enter_context(socket.create_connection((str(address.hostname), address.port or 0)))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.sendall(request.encode())
        # A client that reads is served beside them, so all their requests have been looked at.
        assert guarded.call("POST", "/v1/tenants/bank/events", {"in": "1h", "to": "queue:a"}).status == 201
        assert guarded.call("GET", "/healthz").status == 200
        assert sum(map(rss_of, pids)) - before < 250_000_000, "150 pages would be 600 MB"


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def rss_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096


def test_names_without_an_answer_hold_up_no_other_tenant(tmp_path: Path) -> None:
    """The server sees a name server of the test, by a resolv.conf in a mount namespace of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        missing = pytest.fail if os.environ.get("EVERBELL_REQUIRE_SERVICES") == "1" else pytest.skip
        missing("only root can give a process a name server of its own")
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"mount namespaces cannot be made here: {probe.stderr.strip()}")
    address = "127.53.17.5"
    settings = tmp_path / "resolv.conf"
    settings.write_text(f"nameserver {address}\noptions timeout:20 attempts:2\n")
    wrapper = ("unshare", "-m", "sh", "-c", f'mount --bind {settings} /etc/resolv.conf && exec "$@"', "sh")
    machine = Machine(tmp_path)
    with NameServer(address) as names, Receiver(1) as receiver:
        machine.start(*wrapper)
        with machine:
            machine.schedule_many(
                [{"in": 0, "to": f"http://h{number}.silent.test/"} for number in range(200)], tenant="greedy"
            )
            until(lambda: len(names.asked) >= 16, lambda: f"the names are looked up: {names.asked}")
            for number in range(5):
                url = receiver.url("/status/200", host=f"h{number}.good.test")
                event = machine.until_status(machine.schedule(url, tenant="calm"), "delivered", tenant="calm")
                assert event["attempt_count"] == 1, "waiting for a name is no attempt"
            assert len(names.asked) < 100, "the names of the greedy tenant still wait for their turns"
