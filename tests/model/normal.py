"""One state for all states that behave alike: indexes become ranks, and leases that concern no process are dropped."""

from __future__ import annotations

from everbell.core.cluster import PrepareJoin
from tests.model.state import State, subject
from tests.model.values import Freed, Order, Values


def normal(values: Values, state: State) -> State:
    """The state that stands for all that behave like this one."""
    return _ranked(values, _forgotten(values, state))


def _forgotten(values: Values, state: State) -> State:
    """Without leases that concern no process."""
    known = {each for number in state.values for each in _living(values, number)}
    known.update(subject(order) for order in state.strays)
    for process in state.processes:
        known.update((process.me, *process.watching, *process.namesakes))
        known.update(subject(order) for order in process.queue)
    return state._replace(
        leases=tuple(lease for lease in state.leases if lease in known),
        ended=tuple(lease for lease in state.ended if lease in known),
    )


def _ranked(values: Values, state: State) -> State:
    joining = {process.me for process in state.processes}
    orders = [*state.strays, *(order for process in state.processes for order in process.queue)]
    joining.update(order.member.incarnation for order in orders if isinstance(order, PrepareJoin))
    used = {index for number in state.values for index in values.indexes(number)}
    for process in state.processes:
        used.update(epoch for _, epoch in (*process.running, *process.stopping))
    used.update(epoch for order in orders if isinstance(order, Freed) for _, epoch in order.epochs)
    ranks = {index: rank for rank, index in enumerate(sorted(used | {0}))}

    def ranked(order: Order) -> Order:
        if not isinstance(order, Freed):
            return order
        return Freed(order.owner, tuple((number, ranks[epoch]) for number, epoch in order.epochs))

    return state._replace(
        values=tuple(values.renamed(number, ranks, joining) for number in state.values),
        strays=tuple(map(ranked, state.strays)),
        processes=tuple(
            process._replace(
                queue=tuple(map(ranked, process.queue)),
                running=tuple((number, ranks[epoch]) for number, epoch in process.running),
                stopping=tuple((number, ranks[epoch]) for number, epoch in process.stopping),
            )
            for process in state.processes
        ),
    )


def mentioned(values: Values, state: State) -> set[str]:
    """All incarnations that a state mentions."""
    found = {each for number in state.values for each in (*_living(values, number), *values[number].departed)}
    found.update(state.leases, state.ended, map(subject, state.strays))
    for process in state.processes:
        found.update((process.me, *process.watching, *process.namesakes), map(subject, process.queue))
        found.update(each for inspection in process.inspections for each in inspection)
    return found


def _living(values: Values, number: int) -> tuple[str, ...]:
    value = values[number]
    return (*value.members, *value.joins)
