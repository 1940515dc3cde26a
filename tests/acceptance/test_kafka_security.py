"""A real Kafka behind TLS and passwords: a client with both gets in, and any other learns what to fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.kafka_stage import RETRY, KafkaStage
from tests.acceptance.machine import Machine, until
from tests.acceptance.test_gateways import gateways_of
from tests.services import shared
from tests.services.kafka import PASSWORD, USER, KafkaServer


@pytest.fixture
def server() -> KafkaServer:
    return shared.kafka()


def secured(folder: Path, stage: KafkaStage, server: KafkaServer, *lines: str) -> list[str]:
    """The options of a stage, for the secure listener; the last of several lines for a property wins."""
    properties = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", f"sasl.username={USER}", *lines]
    with (folder / "kafka.properties").open("a") as file:
        file.writelines(f"{line}\n" for line in properties)
    return [server.secure_address if option == server.address else option for option in stage.options]


def test_records_are_read_and_written_over_tls_with_a_password(tmp_path: Path, server: KafkaServer) -> None:
    stage = KafkaStage(tmp_path, server)
    options = secured(tmp_path, stage, server, f"ssl.ca.location={server.authority}", f"sasl.password={PASSWORD}")
    with Machine(tmp_path, *options, "--gateways", "1", "--log-level", "debug") as machine:
        stage.write(50, keys=5)
        stage.topics.write(stage.source, b"{nonsense")
        stage.judge()
        stage.topics.read(stage.refused, 1)
        stage.until_read(besides=1)
        assert machine.call("GET", "/healthz").json["kafka"]["ok"]
        (gateway,) = gateways_of(machine)
        assert PASSWORD not in Path(f"/proc/{gateway}/cmdline").read_text()
        assert machine.stop() == 0
        assert PASSWORD not in machine.log


@pytest.mark.parametrize(
    ("gateways", "password", "trusts", "reason"),
    [("1", "wrong-word", True, "Authentication failed"), ("0", PASSWORD, False, "certificate verify failed")],
)
def test_a_refused_login_is_reported_with_its_reason(
    tmp_path: Path, server: KafkaServer, gateways: str, password: str, trusts: bool, reason: str
) -> None:
    stage = KafkaStage(tmp_path, server)
    lines = [f"sasl.password={password}", *([f"ssl.ca.location={server.authority}"] if trusts else [])]
    options = [*secured(tmp_path, stage, server, *lines), "--gateways", gateways]
    with Machine(tmp_path, *options, config="[defaults]\ntimeout = '500ms'\n") as machine:
        event = machine.schedule(f"kafka://{stage.sink}", retry=RETRY)
        until(lambda: reason in _reason(machine), lambda: f"{reason}: {_reason(machine)}")
        until(lambda: reason in str(machine.event(event)), lambda: f"{reason}: {machine.event(event)}")
        assert machine.call("GET", "/readyz").status == 200, "the server has to stay ready"
        assert machine.stop() == 0
        assert password not in machine.log


def _reason(machine: Machine) -> str:
    health = machine.call("GET", "/healthz").json["kafka"]
    return str(health.get("reason", ""))
