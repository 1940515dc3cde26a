"""The moves of the model: the work of the shell between two entries, and the faults around it.

The decisions are those of the real code (`apply`, `effects`, `reactions`, `attempts`). This module has the order in
which the shell performs them, with every delay that a process, the log or a lease may have:

- a process plays entries at its own pace, and appends its commands one after the other;
- a lease that has ended is noticed some time later, by each watcher on its own;
- a process that lost its lease may not know it yet: it delivers nothing, and may still play and append.

A play that commutes with all other moves happens at once (`_is_calm`): to delay it would show nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from everbell.core.cluster import (
    BackOff,
    Ceded,
    Drain,
    Drained,
    Effect,
    Forget,
    Halt,
    Inspect,
    Joined,
    Leave,
    Left,
    Member,
    NameTaken,
    Remove,
    Start,
    Stop,
    Unwatch,
    Value,
    Watch,
    first_try,
    inspected,
    next_try,
    report,
    withdrawn,
)
from tests.model.normal import mentioned, normal
from tests.model.state import Budget, Process, State, subject
from tests.model.values import Freed, Order, Values

T = TypeVar("T")


class Move(NamedTuple):
    """A step to another state."""

    kind: str
    name: str
    state: State


FAULTS = frozenset({"start", "kill", "pause", "lose", "leave", "repeat", "stray", "jump", "withdraw", "forget"})
"""Moves that need not happen. All others happen in the end, if they stay possible."""

CHANCES = frozenset({"retry", "insist"})
"""Moves after a random pause: these may lead back to an earlier state."""


BACKLOG_MAX = 2
"""A back-off ends when no process is more entries behind than this.

Otherwise joiners that try again and again would fill the log while one process plays nothing, and there would be no end
to the states. Pauses grow with each try, so they outlast such a process.
"""


class Unsafe(AssertionError):
    """A rule that no state may break."""


class Moves:
    """All moves from a state."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def all(self, state: State) -> list[Move]:
        """All moves. A state from which only a late timer leads on gets that timer."""
        found = [Move(kind, name, self._normal(after)) for kind, name, after in self._raw(state)]
        if all(move.kind in FAULTS for move in found):
            found += (Move("insist", name, self._normal(after)) for name, after in self._insisting(state))
        return found

    def _raw(self, state: State) -> Iterator[Move]:
        for place, process in enumerate(state.processes):
            yield from self._faults_of(state, place, process)
            if process.is_on:
                yield from self._steps_of(state, place, process)
        for lease in state.leases:
            after = state._replace(leases=_without(state.leases, lease), ended=_with(state.ended, lease))
            yield Move("lease ends", lease, after)
        for stray in state.strays:
            for after in self._appended(state, stray):
                yield Move("stray", subject(stray), after._replace(strays=_without(after.strays, stray)))
        if state.budget.forgets:
            for name in sorted({part.home for part in self._values[state.values[-1]].partitions} - {""}):
                for after in self._appended(state, Forget(name)):
                    yield Move("forget", name, _spent(after, forgets=1))

    # The steps of a process.

    def _steps_of(self, state: State, place: int, process: Process) -> Iterator[Move]:
        name = process.name
        if process.at < len(state.values) - 1:
            yield Move("play", name, self._played(state, place, process.at + 1))
        if process.queue:
            rest = _put(state, place, process._replace(queue=process.queue[1:]))
            for after in self._appended(rest, process.queue[0]):
                yield Move("append", name, after)
        if not process.me:
            if not process.is_leaving:
                yield Move("enter", name, self._entered(state, place))
            return
        for each in process.watching:
            if each in state.ended:
                told = process._replace(watching=_without(process.watching, each))
                yield Move("notice", name, _put(state, place, _asked(told, report(process.me, each))))
        for held in process.stopping:
            freed = process._replace(stopping=_without(process.stopping, held))
            yield Move("release", name, _put(state, place, _asked(freed, Freed(process.me, (held,)))))
        if len(process.stopping) > 1:
            freed = process._replace(stopping=())
            yield Move("release", name, _put(state, place, _asked(freed, Freed(process.me, process.stopping))))
        yield from self._steps_of_joiner(state, place, process)
        if process.is_late:
            yield Move("notice loss", name, self._lost(state, place))
        if process.is_leaving and not process.has_stopped:
            yield Move("stop", name, self._stopped(state, place))

    def _steps_of_joiner(self, state: State, place: int, process: Process) -> Iterator[Move]:
        name, me = process.name, process.me
        if process.pauses and len(state.values) <= BACKLOG_MAX + 1:
            tried = process._replace(pauses=process.pauses - 1)
            yield Move("retry", name, _put(state, place, _asked(tried, *next_try(me))))
        for inspection in process.inspections:
            rest = process._replace(inspections=_without(process.inspections, inspection))
            dead = [each for each in inspection if each in state.ended]
            commands = inspected(self._value(state, process), _member(process), dead)
            yield Move("inspect", name, _put(state, place, _asked(rest, *commands)))
        for namesake in process.namesakes:
            if namesake in state.ended:
                rest = process._replace(namesakes=_without(process.namesakes, namesake))
                value = self._value(state, process)
                reports = [report(me, namesake)] if namesake in value.members or namesake in value.joins else []
                yield Move("name is free", name, _put(state, place, _asked(rest, *reports, *next_try(me))))

    def _insisting(self, state: State) -> Iterator[tuple[str, State]]:
        for place, process in enumerate(state.processes):
            if process.me and process.me not in self._value(state, process).members:
                yield process.name, _put(state, place, _asked(process, *withdrawn(process.me)))

    # Faults.

    def _faults_of(  # noqa: C901 -- one case for each fault
        self, state: State, place: int, process: Process
    ) -> Iterator[Move]:
        budget, name = state.budget, process.name
        if not process.is_on:
            # Processes that have never run are alike: they start in the order of their names.
            is_next = all(other.at >= 0 for other in state.processes[:place])
            if budget.starts and is_next:
                began = _put(state, place, Process(name, True, at=len(state.values) - 1))
                yield Move("start", name, _spent(self._entered(began, place), starts=1))
            return
        if budget.kills:
            yield Move("kill", name, _spent(self._ended(state, place, Process(name)), kills=1))
        if not process.me:
            return
        is_member = process.me in self._value(state, process).members
        if budget.pauses and not process.is_late:
            after = _put(state, place, process._replace(is_late=True))
            yield Move("pause", name, _spent(after._replace(leases=_with(state.leases, process.me)), pauses=1))
        if budget.losses and not process.is_late:
            yield Move("lose", name, _spent(self._lost(state, place), losses=1))
        if budget.leaves and is_member and not process.is_leaving:
            left = _asked(process._replace(is_leaving=True), Drain(name, process.me))
            yield Move("leave", name, _spent(_put(state, place, left), leaves=1))
        if budget.repeats and process.queue:
            for after in self._appended(state, process.queue[0]):
                yield Move("repeat", name, _spent(after, repeats=1))
        if budget.jumps:
            for to in range(process.at + 2, len(state.values)):
                yield Move("jump", name, _spent(self._played(state, place, to), jumps=1))
        if budget.withdrawals and not is_member:
            after = _put(state, place, _asked(process, *withdrawn(process.me)))
            yield Move("withdraw", name, _spent(after, withdrawals=1))

    # The results.

    def _value(self, state: State, process: Process) -> Value:
        return self._values[state.values[process.at]]

    def _appended(self, state: State, order: Order) -> Iterator[State]:
        end = state.values[-1]
        for choice in range(self._values.choices(end, order)):
            yield state._replace(values=(*state.values, self._values.applied(end, order, choice)))

    def _entered(self, state: State, place: int) -> State:
        """A new incarnation, with a name that nothing in the state mentions any more."""
        process = state.processes[place]
        used = mentioned(self._values, state)
        me = next(each for each in (f"{process.name}{number}" for number in range(1, 10)) if each not in used)
        entered = process._replace(me=me)
        return _put(state, place, _asked(entered, *first_try(_member(entered))))

    def _ended(self, state: State, place: int, after: Process) -> State:
        """The incarnation of a process ends at once; its lease ends later."""
        process = state.processes[place]
        state = _put(state, place, after)
        if process.me and process.me not in state.ended:
            state = state._replace(leases=_with(state.leases, process.me))
        if process.queue and state.budget.strays:
            state = _spent(state._replace(strays=_with(state.strays, process.queue[0])), strays=1)
        return state

    def _lost(self, state: State, place: int) -> State:
        process = state.processes[place]
        gone = Remove(process.me, by=process.me, reason="it lost its lease")
        if process.is_leaving:
            return self._ended(state, place, Process(process.name))
        return self._ended(state, place, Process(process.name, True, at=process.at, queue=(gone,)))

    def _stopped(self, state: State, place: int) -> State:
        process = state.processes[place]
        if process.me not in self._value(state, process).members:
            return self._ended(state, place, Process(process.name))
        still = process._replace(has_stopped=True, running=(), stopping=())
        return _put(state, place, _asked(still, Leave(process.me)))

    def _played(self, state: State, place: int, to: int) -> State:
        process = state.processes[place]
        effects, commands = self._values.seen(state.values[process.at], state.values[to], process.me)
        state = _put(state, place, process._replace(at=to))
        for effect in effects:
            state = self._performed(state, place, effect)
        process = state.processes[place]
        return _put(state, place, _asked(process, *commands)) if process.me else state

    def _performed(self, state: State, place: int, effect: Effect) -> State:  # noqa: C901 -- one case for each effect
        process = state.processes[place]
        match effect:
            case Halt():
                if not process.is_late and process.me not in (*state.leases, *state.ended):
                    raise Unsafe(f"{process.me} was removed while it had its lease")
                out = Process(process.name, not process.is_leaving, at=process.at)
                return self._ended(state, place, out)
            case Left():
                return self._ended(state, place, Process(process.name))
            case Watch(incarnation):
                process = process._replace(watching=_with(process.watching, incarnation))
            case Unwatch(incarnation):
                process = process._replace(watching=_without(process.watching, incarnation))
            case Inspect(incarnations):
                process = process._replace(inspections=_with(process.inspections, incarnations))
            case BackOff():
                process = process._replace(pauses=process.pauses + 1)
            case NameTaken(incarnation):
                process = process._replace(namesakes=_with(process.namesakes, incarnation))
            case Ceded(partition, epoch):
                if (partition, epoch) in process.running and not process.is_late:
                    raise Unsafe(f"{process.me} lost partition {partition} while it had its lease")
                process = process._replace(running=_without(process.running, (partition, epoch)))
            case Stop(partition, epoch):
                if not process.has_stopped:
                    process = process._replace(
                        running=_without(process.running, (partition, epoch)),
                        stopping=_with(process.stopping, (partition, epoch)),
                    )
            case Start(partition, epoch):
                if not process.has_stopped:
                    self._check_start(state, process, partition, epoch)
                    process = process._replace(running=_with(process.running, (partition, epoch)))
            case Joined() | Drained():
                pass
        return _put(state, place, process)

    def _check_start(self, state: State, process: Process, partition: int, epoch: int) -> None:
        """One owner, and rising epochs: among processes that have their leases."""
        if process.is_late:
            return
        for other in state.processes:
            for number, at in other.running:
                if number == partition and not other.is_late and other.name != process.name:
                    raise Unsafe(f"{process.me} (epoch {epoch}) and {other.me} ({at}) run partition {partition}")
        for number, at in process.running:
            if number == partition and at >= epoch:
                raise Unsafe(f"the epoch of partition {partition} did not rise on {process.me}: {at}, {epoch}")

    # One state for all that behave alike.

    def _normal(self, state: State) -> State:
        state = self._caught_up(state)
        positions = [process.at for process in state.processes if process.is_on]
        first = min(positions, default=len(state.values) - 1)
        processes = tuple(
            process._replace(at=process.at - first) if process.is_on else process for process in state.processes
        )
        return normal(self._values, state._replace(values=state.values[first:], processes=processes))

    def _caught_up(self, state: State) -> State:
        values, end = state.values, len(state.values) - 1
        for place, process in enumerate(state.processes):
            while (
                process.is_on
                and process.at < end
                and self._is_calm(process, values[process.at], values[process.at + 1])
            ):
                state = self._played(state, place, process.at + 1)
                process = state.processes[place]
        return state

    def _is_calm(self, process: Process, before: int, after: int) -> bool:
        """Whether a play commutes with every move that may come before it, so that its delay shows nothing new.

        It appends nothing, and ends neither a watch that may still fire nor a run that may still overlap another.
        """
        effects, commands = self._values.seen(before, after, process.me)
        if commands or (process.inspections or process.namesakes):
            return not effects and not commands
        for effect in effects:
            match effect:
                case Watch() | Start() | Joined():
                    continue
                case Unwatch(incarnation) if incarnation not in process.watching:
                    continue
                case Ceded(partition, epoch) if (partition, epoch) not in process.running:
                    continue
            return False
        return True


def is_good(values: Values, state: State) -> bool:
    """Whether all processes are members, have played the log, and run all partitions."""
    value = values[state.values[-1]]
    running = {process.me: process for process in state.processes if process.is_on}
    if not running:
        return True
    if set(value.ring) != set(running) or value.joins:
        return False
    if any(part.owner not in running or part.to for part in value.partitions):
        return False
    owned = {(number, part.epoch) for number, part in enumerate(value.partitions)}
    return {each for process in running.values() for each in process.running} == owned and all(
        process.at == len(state.values) - 1 and not process.is_late for process in running.values()
    )


def _member(process: Process) -> Member:
    return Member(process.name, process.me)


def _put(state: State, place: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:place], process, *state.processes[place + 1 :]))


def _asked(process: Process, *orders: Order) -> Process:
    return process._replace(queue=(*process.queue, *orders))


def _spent(state: State, **costs: int) -> State:
    left = {name: getattr(state.budget, name) - cost for name, cost in costs.items()}
    return state._replace(budget=state.budget._replace(**left))


def _with(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return items if item in items else tuple(sorted((*items, item), key=repr))


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return tuple(each for each in items if each != item)


__all__ = ["CHANCES", "FAULTS", "Budget", "Move", "Moves", "Unsafe", "is_good"]
