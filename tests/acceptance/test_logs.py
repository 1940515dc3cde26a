"""Logs of real processes in JSON: every line of the engine's process and of its gateways is a JSON document."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.processes import CommandLine, ServerProcess


def test_every_log_line_is_a_json_document(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--log-format", "json", "--node", "n1", "--gateways", "1") as server:
        assert CommandLine(server.url)("schedule", "{}", "--to", "queue:mail", "--id", "one", "--in", "1h").code == 0
        assert CommandLine(server.url)("cancel", "one").code == 0
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]

    assert {line["node"] for line in lines} == {"n1"}
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(line["message"].startswith("ready on http://127.0.0.1:") for line in lines)
    (cancelled,) = [line for line in lines if line.get("audit", {}).get("subject") == "one"]
    assert cancelled["process"] == "gateway"
    assert cancelled["audit"]["status"] == 200
