"""Plays a scenario file and writes down the results, in the words of the file itself.

A line that begins with `>` is an action; the indented lines under it are its results for every peer:

    > cluster a b c, 6 partitions, log at 5      a cluster that has settled, with the ring a→b→c→a
    > starts d                                   a process that wants to join
    > starts dying d                             the same, and its lease ends before any peer plays its command
    > next d                                     the next command of d is appended, and all peers play it
    > dies c                                     its lease ends, and its watchers notice
    > dies unseen c                              its lease ends, and no watcher notices
    > dies holding its lease c                   it is dead, but its lease lives on
    > lease ends c                               until now
    > retries d                                  d has backed off, and tries to join again
    > released b                                 b has drained the partitions it had to stop
    > run                                        all pending commands are appended, in turn, until none is left

`b2` is a process with the name `b` that was started again. Ring: `a→b→a`. Partitions: `0:a` is owned by a, `0:a>d` is
being handed over to d, `0:a(b)` is owned by a, which stands in for b.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from everbell.core.cluster import (
    NOTHING,
    AbortJoin,
    AcceptJoin,
    BackOff,
    Ceded,
    Command,
    Drain,
    Effect,
    FoundCluster,
    Group,
    Halt,
    Inspect,
    Leave,
    Member,
    NameTaken,
    NotifyWatchers,
    Percentage,
    PrepareJoin,
    Release,
    Remove,
    SetStrategy,
    Start,
    Stop,
    Undrain,
    Unwatch,
    Value,
    Watch,
    Weighted,
    apply,
    first_try,
    next_try,
)
from everbell.core.cluster.placement import settle
from tests.unit.core.cluster.stage import Peer, Stage

ENTRIES_MAX = 200


class Storyteller:
    """One scenario being played."""

    def __init__(self) -> None:
        self.stage = Stage()

    def tell(self, text: str) -> str:
        """The whole scenario again, with the actual results under each action."""
        told: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                told.append(line)
                told += (f"    {outcome}" for outcome in self._act(line[2:].replace(",", "").split()))
            elif not line.startswith("    "):
                told.append(line)
        return "\n".join(told) + "\n"

    def _act(self, words: list[str]) -> Iterator[str]:
        match words:
            case ["cluster", *names, count, "partitions", "log", "at", index]:
                yield from self._cluster(names, int(count), int(index))
            case ["starts", name]:
                yield from self._append_all(name, first_try(self._peer(name).member))
            case ["retries", name]:
                assert self.stage.peers[name].is_backing_off
                yield from self._append_all(name, next_try(name))
            case ["starts", "dying", name]:
                self._peer(name).end()
                self.stage.ended.add(name)
                yield from self._append_all(name, first_try(self._peer(name).member))
            case ["next", name]:
                yield from self._append(name, self.stage.peers[name].queue.popleft())
            case ["released", name]:
                yield from self._append(name, self._released(name))
            case ["leaves", name]:
                self.stage.leave(self.stage.peers[name])
                yield from self._append(name, self.stage.peers[name].queue.popleft())
            case ["run"]:
                yield from self._run()
            case ["dies", *_] | ["lease", "ends", _]:
                yield from self._die(words)
            case _:
                yield from self._append("operator", _command_of(words))

    def _die(self, words: list[str]) -> Iterator[str]:
        name = words[-1]
        if words[0] == "dies":
            self.stage.peers[name].end()
        if words[1] == "unseen":
            self.stage.ended.add(name)
        elif words[1] != "holding":
            for me, command in self.stage.end_lease(name).items():
                yield f"{me} wants {_phrase(command)}"

    def _cluster(self, names: list[str], partitions: int, index: int) -> Iterator[str]:
        founded = apply(NOTHING, 1, FoundCluster("scenario", partitions))
        members = {name: _member(name) for name in names}
        self.stage.start = settle(replace(founded, index=index, members=members, ring=tuple(names)))
        for member in members.values():
            self.stage.add(member).queue.clear()
        yield from _picture(self.stage.start)

    def _peer(self, name: str) -> Peer:
        return self.stage.peers.get(name) or self.stage.add(_member(name))

    def _released(self, name: str) -> Command:
        self.stage.release(self.stage.peers[name])
        return self.stage.peers[name].queue.pop()

    def _append_all(self, who: str, commands: tuple[Command, ...]) -> Iterator[str]:
        for command in commands:
            yield from self._append(who, command)

    def _append(self, who: str, command: Command) -> Iterator[str]:
        yield f"({self.stage.append(command)}) {who}: {_phrase(command)}"
        before = after = self.stage.start
        for peer in self.stage.alive:
            done: tuple[Effect, ...] = ()
            wanted: tuple[Command, ...] = ()
            while self.stage.is_behind(peer):
                before = peer.value
                done, wanted = self.stage.play(peer)
            after = peer.value
            if deeds := [*_deeds(done), *(f"wants {_phrase(wish)}" for wish in wanted)]:
                yield f"    {peer.me}: {', '.join(deeds)}"
        yield from (f"    {line}" for line in _picture(after) if line not in _picture(before))

    def _run(self) -> Iterator[str]:
        for _ in range(ENTRIES_MAX):
            ready = [peer for peer in self.stage.alive if peer.queue or peer.stopping]
            if not ready:
                return
            command = ready[0].queue.popleft() if ready[0].queue else self._released(ready[0].me)
            yield from self._append(ready[0].me, command)
        raise AssertionError("livelock")


def _member(incarnation: str) -> Member:
    return Member(incarnation.rstrip("0123456789"), incarnation)


def _command_of(words: list[str]) -> Command:
    """The command of an operator."""
    match words:
        case ["drain", name]:
            return Drain(name)
        case ["undrain", name]:
            return Undrain(name)
        case ["weigh", *weights]:
            return SetStrategy(Weighted({name: int(weight) for name, weight in zip(*[iter(weights)] * 2, strict=True)}))
        case ["group", name, percent, "percent", "partitions", first, "to", last]:
            return SetStrategy(Percentage((Group(name, int(percent), int(first), int(last) - int(first) + 1),)))
    raise AssertionError(f"the storyteller does not know how to: {' '.join(words)}")


def _phrase(command: Command) -> str:
    """A command in a few words: its name and its subject."""
    kind = re.sub(r"(?<=.)([A-Z])", r"-\1", type(command).__name__).lower()
    match command:
        case NotifyWatchers(joiner) | AcceptJoin(joiner) | AbortJoin(joiner):
            return f"{kind} {joiner}"
        case Leave(member) | Remove(member):
            return f"{kind} {member}"
        case PrepareJoin(member):
            return f"{kind} {member.incarnation}"
        case Release(_, epochs):
            return f"{kind} {_listed(epochs)}"
        case Drain(name) | Undrain(name):
            return f"{kind} {name}"
        case SetStrategy(strategy):
            return f"{kind} {type(strategy).__name__.lower()}"
    return kind


def _deeds(effects: tuple[Effect, ...]) -> Iterator[str]:
    """Effects in a few words; one phrase for the same effect on several partitions."""
    phrases: dict[str, list[int]] = {}
    for effect in effects:
        match effect:
            case Start(partition, epoch, clean):
                phrases.setdefault(f"starts @ in epoch {epoch}{'' if clean else ', unclean'}", []).append(partition)
            case Stop(partition):
                phrases.setdefault("stops @", []).append(partition)
            case Ceded(partition):
                phrases.setdefault("cedes @", []).append(partition)
            case Watch(incarnation):
                phrases[f"watches {incarnation}"] = []
            case Unwatch(incarnation):
                phrases[f"no longer watches {incarnation}"] = []
            case Inspect(incarnations):
                phrases[f"inspects {' '.join(incarnations) or 'nobody'}"] = []
            case BackOff(reason) | Halt(reason):
                phrases[f"{'halts' if isinstance(effect, Halt) else 'backs off'} ({reason})"] = []
            case NameTaken(incarnation):
                phrases[f"finds its name taken by {incarnation}"] = []
            case _:
                phrases[f"has {type(effect).__name__.lower()}"] = []
    return (phrase.replace("@", _listed(partitions)) for phrase, partitions in phrases.items())


def _picture(value: Value) -> list[str]:
    ring = "→".join([*value.ring, *value.ring[:1]]) or "empty"
    joins = [f"{joiner}→{join.target} ({join.phase})" for joiner, join in value.joins.items()]
    owners = (
        f"{number}:{part.owner or '-'}{f'>{part.to}' if part.to else ''}{f'({part.home})' if part.home else ''}"
        for number, part in enumerate(value.partitions)
    )
    return [
        f"ring {ring}",
        f"joining {' '.join(joins) or 'nobody'}",
        f"partitions {' '.join(owners)}",
        f"backups {' '.join(f'{ward}:{backup}' for ward, backup in value.backups.items()) or 'none'}",
    ]


def _listed(partitions: dict[int, int] | list[int]) -> str:
    return " ".join(map(str, partitions))
