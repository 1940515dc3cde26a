"""Playing the log: from value and command to the next value.

`apply` is pure and total. A command that no longer fits (its member has left, its partition was released already) is
ignored, because nodes append commands without knowing what others append at the same time. Every entry advances the
index. The invariants are checked after each entry, in production too: a node that stops is better than two that
disagree.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from everbell.core.cluster import commands as c
from everbell.core.cluster import membership
from everbell.core.cluster.history import noted
from everbell.core.cluster.invariants import check, check_step
from everbell.core.cluster.placement import settle
from everbell.core.cluster.strategy import flaw
from everbell.core.cluster.value import Placement, Policy, Value

PARTITIONS_MAX = 65_536


def apply(value: Value, index: int, command: c.Command) -> Value:
    """The value after the entry at `index`. An entry that was played before changes nothing."""
    if index <= value.index:
        return value
    after = _changed(replace(value, index=index), command)
    check(after)
    check_step(value, after)
    return after


def _changed(value: Value, command: c.Command) -> Value:  # noqa: C901 -- a closed union, told apart once
    if isinstance(command, c.FoundCluster):
        return value if value.cluster else _found(value, command)
    if not value.cluster:
        return value
    match command:
        case c.PeerGc():
            return noted(value, "peer-gc", command.by)
        case c.PrepareJoin():
            return _placed(value, membership.prepare_join(value, command))
        case c.NotifyWatchers():
            return membership.notify_watchers(value, command)
        case c.AcceptJoin():
            return _placed(value, membership.accept_join(value, command))
        case c.AbortJoin():
            return membership.abort_join(value, command)
        case c.Leave():
            return _placed(value, membership.leave(value, command))
        case c.Remove():
            return _placed(value, membership.remove(value, command))
        case c.Release():
            return _release(value, command)
        case c.SetStrategy():
            return _set_strategy(value, command)
        case c.Drain():
            return _drain(value, command.name, True, command.incarnation)
        case c.Undrain():
            return _drain(value, command.name, False)
        case c.Forget():
            return _forget(value, command)
        case c.PutDocument():
            return _put_document(value, command)
        case c.DropDocument():
            return _drop_document(value, command)
        case c.RaiseFormat():
            return _raise_format(value, command)
        case _ as never:
            assert_never(never)


def _found(value: Value, command: c.FoundCluster) -> Value:
    if not command.cluster or not 1 <= command.partitions <= PARTITIONS_MAX:
        return value
    parts = (Placement(),) * command.partitions
    return noted(
        replace(value, cluster=command.cluster, format=command.format, partitions=parts), "found", command.cluster
    )


def _placed(before: Value, after: Value) -> Value:
    """Place partitions anew if the members have changed."""
    return after if after.members is before.members else settle(after)


def _release(value: Value, command: c.Release) -> Value:
    released = {
        number
        for number, epoch in command.epochs.items()
        if 0 <= number < len(value.partitions)
        and value.partitions[number].owner == command.owner
        and value.partitions[number].epoch == epoch
        and value.partitions[number].to
    }
    if not released or command.owner not in value.members:
        return value
    parts = tuple(
        replace(part, owner="", clean=True) if number in released else part
        for number, part in enumerate(value.partitions)
    )
    after = settle(replace(value, partitions=parts))
    return noted(after, "release", command.owner, f"{len(released)} partitions")


def _set_strategy(value: Value, command: c.SetStrategy) -> Value:
    if command.strategy == value.strategy:
        return value
    if reason := flaw(command.strategy, len(value.partitions)):
        return noted(value, "refuse-strategy", type(command.strategy).__name__.lower(), reason)
    after = settle(replace(value, strategy=command.strategy))
    return noted(after, "set-strategy", type(command.strategy).__name__.lower())


def _drain(value: Value, name: str, draining: bool, only: str = "") -> Value:
    for incarnation, member in value.members.items():
        if member.name == name and member.draining != draining and only in ("", incarnation):
            members = {**value.members, incarnation: replace(member, draining=draining)}
            return noted(settle(replace(value, members=members)), "drain" if draining else "undrain", incarnation)
    return value


def _forget(value: Value, command: c.Forget) -> Value:
    if not any(part.home == command.name for part in value.partitions):
        return value
    parts = tuple(replace(part, home="") if part.home == command.name else part for part in value.partitions)
    return noted(replace(value, partitions=parts), "forget", command.name)


def _put_document(value: Value, command: c.PutDocument) -> Value:
    if not _is_expected(value, command):
        return noted(value, "refuse-policy", command.name, "it has another version")
    policies = {**value.policies, command.name: Policy(value.index, command.document)}
    return noted(replace(value, policies=policies), "set-policy", command.name)


def _drop_document(value: Value, command: c.DropDocument) -> Value:
    if command.name not in value.policies:
        return value
    if not _is_expected(value, command):
        return noted(value, "refuse-policy", command.name, "it has another version")
    policies = {name: policy for name, policy in value.policies.items() if name != command.name}
    return noted(replace(value, policies=policies), "drop-policy", command.name)


def _is_expected(value: Value, command: c.PutDocument | c.DropDocument) -> bool:
    policy = value.policies.get(command.name)
    return command.expected is None or command.expected == (policy.version if policy else 0)


def _raise_format(value: Value, command: c.RaiseFormat) -> Value:
    members = (*value.members.values(), *(join.member for join in value.joins.values()))
    newest = min((member.format for member in members), default=value.format)
    if not value.format < command.format <= newest:
        return value
    return noted(replace(value, format=command.format), "raise-format", str(command.format))
