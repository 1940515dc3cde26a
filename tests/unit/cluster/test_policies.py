"""Policies behind a node: the answers to a change that lost a race, and to one in the log that is not played yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from everbell.cluster.player import Player
from everbell.cluster.policies import ClusterPolicies
from everbell.core.cluster import Command, FoundCluster, PutDocument, encode_command
from everbell.errors import OutcomeUnknown, VersionMismatch
from everbell.logs.memory import SharedLog
from everbell.testing import VirtualClock, run_virtual

Act = Callable[[ClusterPolicies], Awaitable[object]]


class Scene:
    """Policies over a log; after a write the log is read as far as a test lets it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.log = SharedLog().handle()
        self.player = Player(self.log, clock, lambda before, after: None, lambda reason: None, 1_000)
        self.policies = ClusterPolicies(self.player, self._write)
        self.is_behind = False

    async def found(self) -> None:
        await self.log.append(encode_command(FoundCluster("c", 4)))
        await self.log.append(encode_command(PutDocument("shop", b"{}")))
        await self.player.catch_up()

    async def _write(self, command: Command) -> int:
        index = await self.log.append(encode_command(command))
        if not self.is_behind:
            await self.player.catch_up()
        return index


@pytest.mark.parametrize(
    "act", [lambda policies: policies.put("shop", b'{"batch":2}', None), lambda policies: policies.drop("shop", None)]
)
def test_a_change_that_was_not_seen_yet_is_not_told_as_refused(act: Act) -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.found()
        scene.is_behind = True
        with pytest.raises(OutcomeUnknown, match="not known yet"):
            await act(scene.policies)

    run_virtual(main)


@pytest.mark.parametrize(
    "act", [lambda policies: policies.put("shop", b'{"batch":2}', 1), lambda policies: policies.drop("shop", 1)]
)
def test_another_version_is_refused(act: Act) -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.found()
        with pytest.raises(VersionMismatch, match="has version 2, not 1"):
            await act(scene.policies)

    run_virtual(main)


def test_a_change_that_lost_a_race_is_refused() -> None:
    async def main(clock: VirtualClock) -> None:
        scene = Scene(clock)
        await scene.found()
        await scene.log.append(encode_command(PutDocument("shop", b'{"batch":3}')))
        with pytest.raises(VersionMismatch, match="at the same time"):
            await scene.policies.put("shop", b'{"batch":2}', 2)

    run_virtual(main)
