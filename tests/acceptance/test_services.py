"""The servers that the tests start: their archives are fetched once, and a server that cannot start says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services import maven, shared
from tests.services.kafka import KafkaServer
from tests.services.maven import Distribution
from tests.services.process import ServiceFailed, ServiceMissing


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with shared.had(KafkaServer) as server:
        server.kill()
        (server.folder / "data" / "meta.properties").unlink()
        with pytest.raises(ServiceFailed, match=r"(?s)ended instead; its log ends with:.*meta\.properties"):
            server.start()


def test_a_failed_fetch_reports_the_service_as_missing_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.had(KafkaServer).remove()  # Otherwise Maven itself may be missing.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    unknown = Distribution("unknown", "1", ("org.example.everbell:unknown:1",))
    with pytest.raises(ServiceMissing, match=r"org\.example\.everbell:unknown"):
        maven.fetched(unknown)
    assert list((tmp_path / "everbell").iterdir()) == []
