"""Settings: where they come from, which comes first, and the errors about wrong ones."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from everbell.node.settings import SETTINGS, load
from everbell.node.tenant_tables import SettingsError


def written(folder: Path, text: str) -> str:
    file = folder / "everbell.toml"
    file.write_text(text)
    return str(file)


def test_the_defaults() -> None:
    settings = load({}, {}, None)

    assert settings.store == "rocksdb:./everbell-data"
    assert (settings.host, settings.port, settings.gateways) == ("127.0.0.1", 8420, 0)
    assert settings.engine.memory_bytes == 128 * 1024 * 1024
    assert settings.partitions == 256


@pytest.mark.parametrize(
    ("flags", "environment", "file", "in_flight"),
    [
        ({"in_flight": "1"}, {"EVERBELL_IN_FLIGHT": "2"}, "in_flight = 3", 1),
        ({}, {"EVERBELL_IN_FLIGHT": "2"}, "in_flight = 3", 2),
        ({}, {}, "in_flight = 3", 3),
        ({}, {}, "", 4_096),
    ],
)
def test_flags_come_before_variables_before_the_file_before_defaults(
    flags: dict[str, str], environment: dict[str, str], file: str, in_flight: int, tmp_path: Path
) -> None:
    assert load(flags, environment, written(tmp_path, file)).engine.in_flight == in_flight


def test_every_setting_can_be_given_in_every_way() -> None:
    for setting in SETTINGS:
        assert setting.flag.startswith("--")
        assert setting.variable.startswith("EVERBELL_")
        load({setting.name: setting.default}, {}, None)
        load({}, {setting.variable: setting.default}, None)


def test_the_types_of_toml_are_understood(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        listen = "0.0.0.0:0"
        insecure = true
        gateways = 2
        memory = "1GiB"
        lookahead = "5s"
        allow_targets = ["10.0.0.0/8", "192.168.7.0/24"]
        """,
    )
    settings = load({}, {}, file)

    assert (settings.host, settings.port, settings.gateways) == ("0.0.0.0", 0, 2)
    assert settings.engine.memory_bytes == 1 << 30
    assert settings.engine.lookahead_ms == 5_000
    assert settings.allow_targets == (ip_network("10.0.0.0/8"), ip_network("192.168.7.0/24"))


@pytest.mark.parametrize("listen", ["0.0.0.0:8420", "192.168.1.1:8420", "[::]:8420", "example.com:80"])
def test_being_open_beyond_loopback_has_to_be_insisted_on(listen: str) -> None:
    assert not load({"listen": listen}, {}, None).may_be_open
    assert load({"listen": listen, "insecure": "true"}, {}, None).may_be_open


@pytest.mark.parametrize("address", ["", "n1.example:7000", "10.0.0.7:1", "[fd00::7]:65535"])
def test_an_advertised_address_is_kept_unchanged(address: str) -> None:
    assert load({"advertise": address}, {}, None).meeting.advertise == address


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", ":1"])
def test_loopback_needs_no_insisting(listen: str) -> None:
    settings = load({"listen": listen}, {}, None)
    assert settings.may_be_open
    assert settings.on_loopback


def test_loopback_is_no_target_when_others_may_ask() -> None:
    settings = load({"listen": "0.0.0.0:1", "insecure": "yes"}, {}, None)
    assert (settings.allow_targets, settings.on_loopback) == ((), False)


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("lookahed = '3s'", "did you mean 'lookahead'?"),
        ("[tenant]", "did you mean 'tenants'?"),
        ("[tenants.shop]\nretrys = 3", "did you mean 'retry'?"),
        ("[defaults]\ntimeot = '1s'", "did you mean 'timeout'?"),
        ("colour = 'red'", "there are"),
        ("[tenants.shop]\nconsistency = 'SOME'", "there are strict, relaxed, ONE"),
    ],
)
def test_a_typo_in_the_file_is_answered_with_the_right_name(file: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        load({}, {}, written(tmp_path, file))

    assert hint in str(wrong.value)
    assert "everbell.toml" in str(wrong.value)


def test_a_typo_in_a_variable_is_answered_with_the_right_name() -> None:
    with pytest.raises(SettingsError, match="did you mean 'EVERBELL_GATEWAYS'"):
        load({}, {"EVERBELL_GATEWAY": "2"}, None)


def test_variables_of_others_and_of_the_client_are_left_alone() -> None:
    load({}, {"PATH": "/bin", "EVERBELL_SERVER": "http://localhost:1", "EVERBELL_TENANT": "shop"}, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listen", "8420x"),
        ("listen", "localhost:99999"),
        ("advertise", "n1.example"),
        ("advertise", "n1.example:http"),
        ("advertise", "n1.example:0"),
        ("advertise", ":7000"),
        ("advertise", "n1..example:7000"),
        ("gateways", "many"),
        ("gateways", "65"),
        ("memory", "lots"),
        ("lookahead", "soon"),
        ("in_flight", "0"),
        ("partitions", "-1"),
        ("allow_targets", "10.0.0.1/8"),
        ("insecure", "perhaps"),
        ("log_level", "loud"),
        ("audit", "some"),
    ],
)
def test_a_wrong_value_is_refused_with_its_origin(name: str, text: str, tmp_path: Path) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    ways: list[tuple[dict[str, str], dict[str, str], str | None, str]] = [
        ({name: text}, {}, None, setting.flag),
        ({}, {setting.variable: text}, None, setting.variable),
        ({}, {}, written(tmp_path, f"{name} = '{text}'"), f"{name} in "),
    ]
    for flags, environment, file, origin in ways:
        with pytest.raises(SettingsError) as wrong:
            load(flags, environment, file)
        assert str(wrong.value).startswith(origin)


def test_tenants_inherit_the_defaults_of_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
        [defaults]
        in_flight = 7
        timeout = "3s"
        [tenants.shop]
        timeout = "5s"
        retry = { max_attempts = 2 }
        """,
    )
    tenants = load({}, {}, file).tenants

    assert (tenants.policy("anybody").in_flight, tenants.policy("anybody").timeout_ms) == (7, 3_000)
    assert (tenants.policy("shop").in_flight, tenants.policy("shop").timeout_ms) == (7, 5_000)
    assert tenants.policy("shop").retry.max_attempts == 2


@pytest.mark.parametrize(
    "file",
    [
        "tenants = { shop = 3 }",
        "[tenants.'a b']",
        "[tenants.shop]\nsecrets = ['x']",
        "[tenants.shop]\nto = 'nowhere'",
        "[tenants.shop]\non_dead = 'cry'",
        "not toml",
    ],
)
def test_a_wrong_tenant_is_refused(file: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        load({}, {}, written(tmp_path, file))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent\.toml"):
        load({}, {}, str(tmp_path / "absent.toml"))
