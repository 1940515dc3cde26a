"""Commands as they are stored in the log, and entries that are not commands."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from everbell.core.cluster import (
    Command,
    Member,
    PrepareJoin,
    decode_command,
    decode_value,
    encode_command,
    encode_value,
)
from everbell.errors import UnknownCommand, UnknownSnapshot
from tests.unit.core.cluster.any_command import commands
from tests.unit.core.cluster.towns import town


@given(commands)
def test_a_written_command_is_read_back(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_people_can_read_them() -> None:
    assert json.loads(encode_command(PrepareJoin(Member("a", "a1", ("10.0.0.1:8420",), "eu-1")))) == {
        "command": "prepare-join",
        "member": {
            "name": "a",
            "incarnation": "a1",
            "addresses": ["10.0.0.1:8420"],
            "zone": "eu-1",
            "capacity": 1,
            "gateway": False,
            "format": 1,
            "draining": False,
        },
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"null",
        b"{}",
        b'{"command": "fly"}',
        b'{"command": "leave"}',
        b'{"command": "leave", "member": 7}',
        b'{"command": "leave", "member": "a", "gently": true}',
        b'{"command": "set-strategy", "strategy": {"strategy": "lucky"}}',
        b'{"command": "set-strategy", "strategy": {"strategy": "balanced", "by": "moon"}}',
        b'{"command": "prepare-join", "member": {"name": "a", "incarnation": "a", "colour": "red"}}',
        b'{"command": "leave", "member": "a"} {}',
    ],
)
def test_an_entry_that_is_not_fully_understood_halts_the_node(data: bytes) -> None:
    with pytest.raises(UnknownCommand, match="upgrade this node"):
        decode_command(data)


def test_a_snapshot_that_is_not_understood_halts() -> None:
    data = encode_value(town("ab", 4))

    for broken in (b"", data[:-1], data + b"x", data.replace(b"cluster", b"mystery", 1)):
        with pytest.raises(UnknownSnapshot, match="upgrade this node"):
            decode_value(broken)
