"""Facades: they are off unless a setting switches them on, and then are like all other routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from everbell.api.facade import FacadeSetting
from everbell.api.facade_list import FACADES, read_facades
from everbell.errors import InvalidInput
from everbell.node.settings import load
from tests.unit.api.keys_stage import KeysStage, guarded

CHRONOS = FacadeSetting("chronos", "shop")


def test_no_facade_is_on_by_default() -> None:
    async def test(stage: KeysStage) -> None:
        assert (await stage.call("GET", "/ping")).status == 404
        assert (await stage.call("POST", "/timers", {})).status == 404

    guarded(test)
    assert load({}, {}, None).facades == ()


def test_a_facade_that_is_on_is_in_the_openapi_document() -> None:
    async def test(stage: KeysStage) -> None:
        paths = stage.api.document["paths"]
        assert {"/ping", "/timers", "/timers/", "/timers/{timer}"} <= set(paths)
        assert "the tenant `shop`" in paths["/timers"]["post"]["description"]
        assert (await stage.call("GET", "/ping")).status == 200
        assert (await stage.call("GET", "/timers")).status == 405

    guarded(test, facades=[CHRONOS])


def test_settings_of_facades() -> None:
    assert read_facades("") == ()
    assert read_facades("chronos=t1") == (FacadeSetting("chronos", "t1"),)
    settings = load({"facade": "chronos=t1"}, {}, None)
    assert settings.facades == (FacadeSetting("chronos", "t1"),)
    policy = settings.tenants.policy("t1")
    assert policy.durability == "replicas"
    assert (policy.done, policy.permanent) == (frozenset({200}), frozenset[int]())
    assert settings.tenants.policy("t2").durability == "store"
    assert settings.replica_bytes > 0, "a tenant of replicas needs memory for them"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("chronos", "write chronos=TENANT"),
        ("chronos=", "write chronos=TENANT"),
        ("chronos=a chronos=b", "more than once"),
        ("quartz", "there is no facade 'quartz'; there are chronos, bigben, pagerduty"),
        ("bigben=shop", "write bigben"),
        ("pagerduty", "write pagerduty=TENANT"),
        ("chronos=../x", "a tenant's name"),
    ],
)
def test_wrong_settings_of_facades(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_facades(text)


def test_the_policies_of_facades_are_valid() -> None:
    for product, facade in FACADES.items():
        settings = load({"facade": f"{product}=shop" if facade.takes_tenant else product}, {}, None)
        assert bool(settings.tenants.named) == facade.takes_tenant


def test_a_file_may_change_the_policy_of_a_facade(tmp_path: Path) -> None:
    file = tmp_path / "everbell.toml"
    file.write_text('facade = "chronos=t1"\n[tenants.t1]\ndurability = "store"\n[defaults]\ndone = ["2xx"]\n')
    policy = load({}, {}, str(file)).tenants.policy("t1")
    assert policy.durability == "store"
    assert policy.done == frozenset({200}), "the defaults of all tenants do not change it"
