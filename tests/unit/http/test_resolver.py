"""Lookups of names: shared fairly between tenants, kept for a while, and begun only when wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from everbell.http.client_message import HttpFailure
from everbell.http.resolver import FOUND_S, NOT_FOUND_S, Resolver


class NameServer:
    """Answers when told, or at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent: dict[str, asyncio.Future[list[str]]] = {}
        self.now_s = 0.0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.silent[host] = asyncio.get_running_loop().create_future()
            return await self.silent[host]
        if host.startswith("missing"):
            raise OSError(-2, "Name or service not known")
        return ["192.0.2.1"]

    def resolver(self, lookups_max: int) -> Resolver:
        return Resolver(self.resolve, lambda: self.now_s, lookups_max)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def stop(tasks: Sequence[asyncio.Task[Sequence[str]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_names_without_an_answer_of_one_tenant_leave_lookups_to_others() -> None:
    async def main() -> None:
        # Given a tenant with many names that no name server answers for
        server = NameServer()
        resolver = server.resolver(9)
        stuck = [asyncio.create_task(resolver.addresses(f"silent{n}.example", 80, "greedy")) for n in range(200)]
        await settle()
        assert len(server.asked) == 6

        # Then the names of others are looked up at once, and its own wait.
        assert await resolver.addresses("shop.example", 80, "modest") == ["192.0.2.1"]
        assert resolver.is_waiting("silent199.example")
        assert not resolver.is_waiting("silent0.example")

        # And the next one has its turn when one ends.
        server.silent["silent0.example"].set_result(["192.0.2.9"])
        await settle()
        assert server.asked[-1] == "silent6.example"
        await stop(stuck)
        for future in server.silent.values():
            future.cancel()
        await settle()

    asyncio.run(main())


def test_answers_and_failures_are_kept_for_a_while() -> None:
    async def main() -> None:
        server = NameServer()
        resolver = server.resolver(4)
        for _ in range(3):
            await resolver.addresses("shop.example", 80, "a")
            with pytest.raises(HttpFailure, match="cannot be resolved: Name or service not known"):
                await resolver.addresses("missing.example", 80, "a")
        assert server.asked == ["shop.example", "missing.example"]
        server.now_s = NOT_FOUND_S
        with pytest.raises(HttpFailure):
            await resolver.addresses("missing.example", 80, "a")
        await resolver.addresses("shop.example", 80, "a")
        assert server.asked == ["shop.example", "missing.example", "missing.example"]
        server.now_s = FOUND_S
        await resolver.addresses("shop.example", 80, "a")
        assert server.asked[-1] == "shop.example"

    asyncio.run(main())


def test_a_name_that_no_connection_waits_for_is_not_looked_up() -> None:
    async def main() -> None:
        server = NameServer()
        resolver = server.resolver(2)
        first = [asyncio.create_task(resolver.addresses(f"silent{n}.example", 80, "a")) for n in range(2)]
        await settle()
        given_up = asyncio.create_task(resolver.addresses("silent-late.example", 80, "a"))
        await settle()
        await stop([given_up])
        for future in server.silent.values():
            future.set_result(["192.0.2.2"])
        await asyncio.gather(*first)
        await settle()
        assert "silent-late.example" not in server.asked
        assert not resolver.is_waiting("silent-late.example")

    asyncio.run(main())
