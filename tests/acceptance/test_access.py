"""Keys, TLS, the audit log and the server's log, with real processes."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.machine import Machine, until
from tests.acceptance.processes import EVERBELL, PATIENCE_S, CommandLine, ServerProcess, quiet_environment
from tests.acceptance.receiver import Receiver

WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PAYLOAD = "the crown jewels"
CONFIG = f"""
[tenants.shop]
secrets = ["{WEBHOOK}"]
"""


def certificate(folder: Path) -> tuple[str, str]:
    """A self-signed certificate, and its key."""
    files = str(folder / "certificate.pem"), str(folder / "key.pem")
    options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bell".split()
    options += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]]
    subprocess.run(["openssl", *options], check=True, capture_output=True)
    return files


class Guarded:
    """A server with TLS and a first key, and its callers."""

    def __init__(self, folder: Path, gateways: int) -> None:
        self.folder = folder
        self.certificate, key = certificate(folder)
        self.key_file, self.audit_file = folder / "first-key", folder / "audit"
        config = folder / "everbell.toml"
        config.write_text(CONFIG)
        options = ["--tls-cert", self.certificate, "--tls-key", key, "--bootstrap-key", str(self.key_file)]
        options += ["--audit-file", str(self.audit_file), "--config", str(config), "--gateways", str(gateways)]
        options += ["--allow-targets", "127.0.0.0/8"]
        self.server = ServerProcess(folder, *options, "--log-level", "debug", store=f"rocksdb:{folder / 'store'}")
        self._trust = ssl.create_default_context(cafile=self.certificate)

    @property
    def operator(self) -> str:
        return self.key_file.read_text().strip()

    def command(self, key: str, *arguments: str) -> Any:
        options = ("--ca", self.certificate, "--token", key)
        return CommandLine(self.server.url)(*arguments, *options)

    def ask(self, method: str, path: str, key: str | None, body: object = None) -> tuple[int, str]:
        """Send one request on a connection of its own: any gateway may get it."""
        request = urllib.request.Request(self.server.url + path, method=method)
        if key is not None:
            request.add_header("authorization", f"Bearer {key}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self._trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def create(self, *arguments: str) -> str:
        made = self.command(self.operator, "keys", "create", *arguments)
        assert made.code == 0, made
        return str(made.out.strip())


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "gateways"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place = Guarded(tmp_path_factory.mktemp("guarded"), request.param)
    with place.server:
        yield place


def test_a_server_on_a_public_address_does_not_start_without_keys(tmp_path: Path) -> None:
    command = [*EVERBELL, "serve", "--store", f"rocksdb:{tmp_path / 'store'}", "--listen", "0.0.0.0:0"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=quiet_environment(), check=False
    )
    assert ended.returncode == 1
    assert "--bootstrap-key" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_key_that_the_first_key_created_works_until_it_is_revoked(guarded: Guarded) -> None:
    assert guarded.server.url.startswith("https://")
    events = "/v1/tenants/shop/events"
    assert guarded.ask("GET", "/readyz", None)[0] == 200
    assert guarded.ask("GET", events, None)[0] == 401
    key = guarded.create("--tenant", "shop", "--note", "orders")
    body = {"in": "1h", "to": "queue:mail", "payload": PAYLOAD, "id": "order-17"}
    # A new key is valid on every gateway at once, or a moment later.
    until(lambda: guarded.ask("POST", events, key, body)[0] in (200, 201), "the new key is valid")
    assert guarded.ask("GET", f"{events}/order-17", key)[0] == 200
    assert guarded.ask("GET", "/v1/tenants/bank/events", key)[0] == 403
    assert guarded.ask("GET", "/v1/keys", key)[0] == 403

    revoked = guarded.command(guarded.operator, "keys", "revoke", key.split("_")[1])
    assert revoked.code == 0, revoked
    until(lambda: all(guarded.ask("GET", events, key)[0] == 401 for _ in range(8)), "all gateways refuse the key")


@pytest.mark.parametrize("gateways", ["0", "1"])
def test_loopback_is_closed_from_the_first_key_on_unless_it_is_allowed(tmp_path: Path, gateways: str) -> None:
    once: dict[str, Any] = {"retry": {"max_attempts": 1}}
    with Receiver(1) as receiver, Machine(tmp_path / "a", "--gateways", gateways) as machine:
        url = receiver.url("/status/200")
        machine.until_status(machine.schedule(url, **once), "delivered")
        # The connection of the first delivery may still be open. Another address of the machine needs a new one.
        other = receiver.url("/status/200", host="127.0.0.2")
        earlier = machine.schedule(other, **once, **{"in": "1h"})
        made = CommandLine(machine.url)("keys", "create", "--all-tenants", "--scope", "admin")
        assert made.code == 0, made
        machine.token = made.out.strip()
        events = "/v1/tenants/shop/events"
        until(lambda: machine.call("GET", events).status == 200, "the new key is valid")
        # A new event is refused at once, and one that was scheduled before when it is due.
        refused = machine.call("POST", events, {"to": other, "in": "1h"})
        assert (refused.status, refused.json["field"]) == (422, "to")
        assert machine.call("POST", f"{events}/{earlier}/deliver").status == 200
        dead = machine.until_status(earlier, "dead")
        for reason in (refused.json["detail"], dead["reason"]):
            assert "loopback" in reason
            assert "--allow-targets" in reason
    allowed = ("--allow-targets", "127.0.0.0/8", "--bootstrap-key", str(tmp_path / "key"))
    with Receiver(1) as receiver, Machine(tmp_path / "b", "--gateways", gateways, *allowed) as machine:
        machine.token = (tmp_path / "key").read_text().strip()
        machine.until_status(machine.schedule(receiver.url("/status/200"), **once), "delivered")


def test_the_audit_log_names_the_key_and_the_operation(guarded: Guarded) -> None:
    key = guarded.create("--tenant", "audited")
    until(lambda: guarded.ask("DELETE", "/v1/tenants/audited/events/absent", key)[0] == 404, "the new key is valid")
    lines = [json.loads(line) for line in guarded.audit_file.read_text().splitlines()]
    mine = [line for line in lines if line.get("tenant") == "audited" and line["status"] == 404]
    assert [(line["who"], line["operation"], line["subject"]) for line in mine] == [
        (key.split("_")[1], "cancel_event", "absent")
    ]
    made = [line for line in lines if line["operation"] == "create_key"]
    assert made[-1]["who"] == guarded.operator.split("_")[1]
    assert made[-1]["subject"] == key.split("_")[1]


def test_no_log_contains_a_secret(guarded: Guarded) -> None:
    key = guarded.create("--tenant", "shop", "--note", "careless")
    secret = key.rpartition("_")[2]
    spec = {"in": 0, "to": "http://127.0.0.1:1/?token=" + key, "payload": PAYLOAD, "headers": {"authorization": key}}
    until(lambda: guarded.ask("POST", "/v1/tenants/shop/events", key, spec)[0] == 201, "the new key is valid")
    for path in (f"/v1/{key}", f"/v1/keys/{key}", f"/v1/tenants/shop/events/{WEBHOOK}", f"/v1/tenants/{key}/events"):
        for method in ("GET", "DELETE", "PATCH"):
            guarded.ask(method, path, key, {"payload": WEBHOOK, "to": f"https://u:{secret}@h/", "note": key})
    guarded.ask("GET", "/v1/keys", guarded.operator)
    guarded.ask("POST", "/v1/backups", guarded.operator)
    logs = guarded.server.log + guarded.audit_file.read_text()
    for hidden in (secret, guarded.operator.rpartition("_")[2], WEBHOOK.removeprefix("whsec_"), PAYLOAD):
        assert hidden not in logs


def test_a_running_server_loads_a_renewed_certificate(guarded: Guarded) -> None:
    before = Path(guarded.certificate).read_text()
    certificate(guarded.folder)
    assert guarded.server._process is not None
    guarded.server._process.send_signal(signal.SIGHUP)
    port = int(guarded.server.url.rpartition(":")[2])

    def is_new() -> bool:
        return ssl.get_server_certificate(("127.0.0.1", port)).split() != before.split()

    until(lambda: all(is_new() for _ in range(8)), "all gateways show the new certificate")
    guarded._trust = ssl.create_default_context(cafile=guarded.certificate)
    assert guarded.ask("GET", "/healthz", None)[0] == 200


def test_keys_survive_a_crash(guarded: Guarded) -> None:
    key = guarded.create("--tenant", "shop")
    guarded.server.kill()
    guarded.server.start()
    until(lambda: guarded.ask("GET", "/v1/tenants/shop/events", key)[0] == 200, "the key is valid")
    assert guarded.ask("GET", "/v1/tenants/shop/events", None)[0] == 401
