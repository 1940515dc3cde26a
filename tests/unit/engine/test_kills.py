"""Kills: everything with a tag, key, target or tenant ends, also events that arrive, until the kill is lifted."""

from __future__ import annotations

from typing import Any

import pytest

from everbell.core.event import Event
from everbell.core.kill import Kill, KillSpec, TenantKills, kill_of, killed_thing
from everbell.errors import EverbellError, InvalidInput
from everbell.testing import VirtualBell

SHOP = "https://shop.example/remind"

KINDS: list[tuple[str, str | None]] = [
    ("tag", "nightly"),
    ("key", "order-17"),
    ("target", SHOP),
    ("target", "https://shop.example"),
    ("tenant", None),
]


async def schedule(bell: VirtualBell, **more: Any) -> str:
    return (await bell.schedule(1, to=SHOP, key="order-17", tags=["nightly"], **more)).id


@pytest.mark.parametrize(("what", "name"), KINDS)
async def test_all_events_end_also_those_that_arrive_until_it_is_lifted(
    bell: VirtualBell, what: Any, name: str | None
) -> None:
    near, far = await schedule(bell, in_="1m"), await schedule(bell, in_="400d")
    recurring = await schedule(bell, repeat={"every": "1h"})
    await bell.kill(what, name, note="wrong prices")
    arrived = await schedule(bell, in_="2d")
    await bell.advance("1h")
    for event_id in (near, far, recurring, arrived):
        event = await bell.get(event_id)
        assert event.status == "cancelled"
        assert event.reason is not None
        assert event.reason.startswith("killed with ")
        assert event.reason.endswith("wrong prices")
    assert bell.attempts == []
    (listed,) = await bell.kills()
    assert (listed.ended, listed.searching) == (4, False)

    lifted = await bell.lift(what, name)
    assert lifted.ended == 4
    after = await schedule(bell, in_="1s")
    await bell.advance("3d")
    assert [attempt.id for attempt in bell.delivered] == [after]


async def test_other_events_go_on(bell: VirtualBell) -> None:
    await bell.kill("tag", "nightly")
    await bell.kill("key", "order-17")
    await bell.kill("target", SHOP)
    one = await bell.schedule(2, to="https://shop.example/other", key="order-18", tags=["daily"], in_="1m")
    await bell.advance("2m")
    assert [attempt.id for attempt in bell.delivered] == [one.id]


async def test_dead_and_retrying_events_end_and_a_redrive_does_not_bring_them_back(bell: VirtualBell) -> None:
    bell.answer(SHOP, 400)
    dead = await bell.schedule(1, to=SHOP, in_="1s", tags=["nightly"])
    await bell.advance("2s")
    bell.answer(SHOP, 500)
    retrying = await bell.schedule(1, to=SHOP, in_="1s", tags=["nightly"])
    await bell.advance("1100ms")
    assert (await bell.get(dead.id)).status == "dead"
    assert (await bell.get(retrying.id)).status == "retrying"
    await bell.kill("tag", "nightly")
    await bell.advance("1h")
    assert {(await bell.get(each.id)).status for each in (dead, retrying)} == {"cancelled"}
    assert len(bell.attempts) == 2


async def test_batches_and_changes_that_store_killed_events_end_them(bell: VirtualBell) -> None:
    await bell.kill("target", "https://shop.example")
    await bell.schedule_many([{"to": SHOP, "at": "2030-01-01T00:00:00Z", "payload": n} for n in range(200)])
    other = await bell.schedule(1, to="https://other.example/", in_="9d")
    await bell.change(other.id, to=SHOP)
    assert (await bell.get(other.id)).status == "cancelled"
    (listed,) = await bell.kills()
    assert listed.ended == 201


@pytest.mark.parametrize(
    ("what", "name"),
    [("tag", None), ("key", None), ("target", None), ("target", "shop"), ("tenant", "shop"), ("tag", "a\nb")],
)
def test_a_kill_names_its_object(what: Any, name: str | None) -> None:
    with pytest.raises(InvalidInput):
        kill_of("shop", KillSpec(what, name), "me", 1)


@pytest.mark.parametrize(
    ("name", "to", "ends"),
    [
        ("https://shop.example", "https://shop.example:443/x", True),
        ("https://shop.example/", "https://shop.example/x", True),
        ("https://shop.example/x", "https://shop.example/x", True),
        ("https://shop.example/x", "https://shop.example/xy", False),
        ("https://shop.example", "https://shop.example.org/", False),
        ("queue:mail", "queue:mail", True),
        ("queue:mail", "queue:mails", False),
        ("kafka://orders", "kafka://orders", True),
        ("kafka://main/", "kafka://main/orders", True),
        ("kafka://main/orders", "kafka://main/others", False),
    ],
)
def test_a_target_is_a_host_or_exactly_what_is_written(name: str, to: str, ends: bool) -> None:
    what, canonical = killed_thing("target", name)
    kills = TenantKills([Kill("shop", what, canonical, 1, "me")])
    assert (kills.kill_of(Event("e", "shop", 0, 1, 1, 1, to, b"", 1)) is not None) is ends


async def test_only_a_kill_can_be_lifted(bell: VirtualBell) -> None:
    with pytest.raises(EverbellError, match="tag 'nightly' is not killed"):
        await bell.lift("tag", "nightly")
