"""A node that cannot join safely ends at once, says why and how to fix it, and reveals no password."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from everbell.core.cluster import Undrain, encode_command
from everbell.logs.url import open_log
from tests.acceptance import off_clock
from tests.acceptance.fleet import Fleet
from tests.acceptance.machine import Machine
from tests.services import shared
from tests.services.postgres import PASSWORD


def refused(folder: Path, *options: str, wrapper: Sequence[str] = ()) -> tuple[int, str]:
    """The exit code and the message of a node that must not start."""
    machine = Machine(folder, *options)
    if machine.tries_to_start(*wrapper):
        machine.kill()
        pytest.fail("it started")
    said = machine.log
    assert "Traceback" not in said, said
    assert PASSWORD not in said
    return machine.code, said


def _wrong_password(url: str) -> str:
    return url.replace("pass%2Fword", "wrong")


def _no_database(url: str) -> str:
    return url.replace("/postgres?", "/nowhere?")


@pytest.mark.parametrize(
    ("harm", "advice"),
    [
        (lambda url: "postgres//db", "postgresql://"),
        (lambda url: "postgresql://h:x:y/db", "write it like"),
        (lambda url: "oracle://db/events", "rocksdb:"),
        (_wrong_password, "correct the password in the URL"),
        (_no_database, "CREATE DATABASE"),
    ],
    ids=["no URL", "no host", "unknown store", "wrong password", "no such database"],
)
def test_a_node_refuses_an_unusable_store_and_says_how_to_fix_it(
    tmp_path: Path, harm: Callable[[str], str], advice: str
) -> None:
    code, said = refused(tmp_path, "--store", harm(shared.postgres().fresh_schema()))
    assert code != 0
    assert advice in said


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        ("zookeeper:/x", "zookeeper://"),
        ("etcd://host/path", "postgresql://"),
        ("zookeeper://127.0.0.1:1/everbell", "127.0.0.1:1"),
    ],
    ids=["no URL", "unknown log", "nobody there"],
)
def test_a_node_refuses_an_unusable_log_and_says_how_to_fix_it(tmp_path: Path, log: str, advice: str) -> None:
    code, said = refused(tmp_path, "--store", shared.postgres().fresh_schema(), "--log", log)
    assert code != 0
    assert advice in said


def test_a_node_refuses_the_log_of_another_cluster(tmp_path: Path) -> None:
    mine, others = shared.postgres().fresh_schema(), shared.postgres().fresh_schema()
    log = shared.zookeeper().fresh_path()
    with Fleet(tmp_path, mine, log=log) as fleet:
        fleet.add("n1")
        fleet.shrink("n1")
    with Fleet(tmp_path / "others", others) as fleet:
        fleet.add("n1")
        fleet.shrink("n1")
    code, said = refused(tmp_path / "late", "--store", others, "--log", log)
    assert code == 1
    assert "check --store and --log" in said


def test_a_node_refuses_another_number_of_partitions(tmp_path: Path) -> None:
    store = shared.postgres().fresh_schema()
    with Fleet(tmp_path, store, "--partitions", "8") as fleet:
        fleet.add("n1")
        code, said = refused(tmp_path / "other", "--store", store, "--partitions", "16", "--node", "n2")
    assert code == 1
    assert "made with 8 partitions" in said


@pytest.mark.parametrize("kind", ["postgres", "zookeeper"])
@pytest.mark.parametrize(("off_s", "way"), [(180, "ahead of"), (-180, "behind")], ids=["ahead", "behind"])
def test_a_node_with_a_clock_minutes_off_does_not_start(tmp_path: Path, kind: str, off_s: int, way: str) -> None:
    store = shared.postgres().fresh_schema()
    log = shared.zookeeper().fresh_path() if kind == "zookeeper" else ""
    with Fleet(tmp_path, store, log=log) as fleet:
        fleet.add("n1")
        options = ["--store", store, "--node", "n2", *(["--log", log] if log else [])]
        code, said = refused(tmp_path / "off", *options, wrapper=[sys.executable, off_clock.__file__, str(off_s)])
        assert code == 1
        assert re.search(rf"this machine's clock is (3m|2m59s)\w* {way} .* set it right", said)
        assert [member["name"] for member in fleet.view("n1")["members"]] == ["n1"]


def test_a_node_refuses_a_name_that_is_in_use(tmp_path: Path) -> None:
    store = shared.postgres().fresh_schema()
    with Fleet(tmp_path, store, "--lease", "1s") as fleet:
        fleet.add("n1")
        code, said = refused(tmp_path / "twin", "--store", store, "--lease", "1s", "--node", "n1")
        assert code == 78
        assert "give this one another with --node" in said
        assert fleet.view("n1")["members"][0]["state"] == "member", "the running node did not continue"


def test_a_command_of_a_newer_version_stops_an_older_node(tmp_path: Path) -> None:
    store, log = shared.postgres().fresh_schema(), shared.zookeeper().fresh_path()
    with Fleet(tmp_path, store, log=log) as fleet:
        fleet.add("n1")
        asyncio.run(_append(log, encode_command(Undrain("n1")).replace(b"undrain", b"levitate")))
        assert fleet.nodes["n1"].code == 78, "a running node has to stop before it disagrees with the others"
        assert "upgrade this node" in fleet.nodes["n1"].log
    code, said = refused(tmp_path / "late", "--store", store, "--log", log, "--node", "n2")
    assert code != 0
    assert "upgrade this node" in said


async def _append(url: str, data: bytes) -> None:
    log = await open_log(url)
    try:
        await log.append(data)
    finally:
        await log.close()
