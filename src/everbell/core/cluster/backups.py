"""Backups: for every member that can own partitions, the member that is first in line for them.

Rules, the stronger first: no member backs up itself; no member backs up more than two others; a backup is in another
zone where zones exist; as many members as possible back up only one; existing assignments stay. A rule gives way
only when it cannot be kept.

This is a matching of wards to backups, found by augmenting paths. It begins with the previous assignments, and a
pair changes only when some ward finds no backup otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from everbell.core.cluster.pools import able, can_own
from everbell.core.cluster.value import Member, Value

WARDS_MAX = 2


def assign_backups(value: Value) -> dict[str, str]:
    """The backup of every member that can own partitions, by incarnation. A single member has none."""
    wards = sorted((member for member in value.members.values() if can_own(member)), key=lambda ward: ward.name)
    matching = _Matching(value.backups, {ward.incarnation: ward for ward in wards}, able(value))
    for is_allowed in (_is_elsewhere, _is_other):
        for wards_max in (1, WARDS_MAX):
            matching.extend(is_allowed, wards_max)
    # A ward without a backup takes the place of another, even if that one loses a backup in another zone.
    matching.relax(_is_other)
    matching.extend(_is_other, WARDS_MAX)
    matching.extend(_is_other, len(wards))
    # A member that is about to leave is better than no backup.
    matching.backups = wards
    matching.extend(_is_other, len(wards))
    return dict(sorted(matching.chosen.items()))


def _is_elsewhere(ward: Member, backup: Member) -> bool:
    return ward.incarnation != backup.incarnation and ward.zone != backup.zone


def _is_other(ward: Member, backup: Member) -> bool:
    return ward.incarnation != backup.incarnation


class _Matching:
    """Pairs of wards and backups, made under ever weaker rules. A pair keeps the rule it was made under."""

    def __init__(self, previous: dict[str, str], wards: dict[str, Member], backups: list[Member]) -> None:
        self.wards = wards
        self.backups = backups
        self.chosen: dict[str, str] = {}
        self._previous = previous
        # The rule under which each pair was made. A ward that gives way keeps this rule.
        self._rules: dict[str, Callable[[Member, Member], bool]] = {}

    def extend(self, is_allowed: Callable[[Member, Member], bool], wards_max: int) -> None:
        """Find backups for all wards without one, as far as possible."""
        self._retain(is_allowed, wards_max)
        for ward in self.wards.values():
            if ward.incarnation not in self.chosen:
                self._rules[ward.incarnation] = is_allowed
                self._pair(ward, wards_max, set())

    def relax(self, is_allowed: Callable[[Member, Member], bool]) -> None:
        """Pairs that give way need no longer keep a stronger rule than this."""
        self._rules = dict.fromkeys(self._rules, is_allowed)

    def _retain(self, is_allowed: Callable[[Member, Member], bool], wards_max: int) -> None:
        backups = {backup.incarnation: backup for backup in self.backups}
        for ward in self.wards.values():
            previous = backups.get(self._previous.get(ward.incarnation, ""))
            if (
                previous
                and ward.incarnation not in self.chosen
                and is_allowed(ward, previous)
                and len(self._wards_of(previous)) < wards_max
            ):
                self.chosen[ward.incarnation] = previous.incarnation
                self._rules[ward.incarnation] = is_allowed

    def _pair(self, ward: Member, wards_max: int, tried: set[str]) -> bool:
        """Give the ward a backup and move other wards if necessary; False if that is impossible."""
        candidates = [backup for backup in self._from(ward) if self._rules[ward.incarnation](ward, backup)]
        free = [backup for backup in candidates if len(self._wards_of(backup)) < wards_max]
        if free:
            self.chosen[ward.incarnation] = min(free, key=lambda backup: len(self._wards_of(backup))).incarnation
            return True
        for backup in candidates:
            if backup.incarnation not in tried:
                tried.add(backup.incarnation)
                for other in self._wards_of(backup):
                    if self._pair(self.wards[other], wards_max, tried):
                        self.chosen[ward.incarnation] = backup.incarnation
                        return True
        return False

    def _from(self, ward: Member) -> list[Member]:
        """The backups in order of name, beginning after the ward, so that the first choices of all wards differ."""
        return sorted(self.backups, key=lambda backup: (backup.name <= ward.name, backup.name))

    def _wards_of(self, backup: Member) -> list[str]:
        return [ward for ward, chosen in self.chosen.items() if chosen == backup.incarnation]
