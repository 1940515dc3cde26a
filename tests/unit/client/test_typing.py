"""Both clients are typed: this module is checked by mypy --strict, as a user's program would be. Nothing is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from everbell import AsyncClient, Client, Everbell
from everbell.channels.queue import Lease
from everbell.client.answers import BatchResult, EventPage, EventView, Scheduled


def use_blocking(client: Client) -> None:
    assert_type(client.schedule({"order": 17}, to="queue:mail", in_="20m"), Scheduled)
    assert_type(client.cancel("order-17", version=3), EventView)
    assert_type(client.page(tag="checkout"), EventPage)
    assert_type(client.list(tag="checkout"), Iterator[EventView])
    assert_type(client.schedule_many([{"in": "1h"}]), BatchResult)
    assert_type(client.lease("mail"), list[Lease])
    client.cancel(17)  # type: ignore[arg-type] # The wrong type of an argument is an error.
    client.cancel("order-17", versoin=3)  # type: ignore[call-arg] # So is an argument that does not exist.


async def use_awaiting(client: AsyncClient, bell: Everbell) -> None:
    assert_type(await client.schedule({"order": 17}, to="queue:mail", in_="20m"), Scheduled)
    assert_type(await bell.cancel("order-17", version=3), EventView)
    assert_type(client.list(tag="checkout"), AsyncIterator[EventView])
    assert_type(client.schedule_batches([{"in": "1h"}]), AsyncIterator[BatchResult])
    assert_type(await client.schedule_many([{"in": "1h"}]), BatchResult)


def test_an_operation_that_does_not_exist_is_no_method() -> None:
    assert not hasattr(Client, "cancle")
