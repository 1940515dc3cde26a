"""The checker of a whole cluster: the rules of `tests.checker`, on true time, and rules that need more than one node.

ended         an attempt that began after the end of its occurrence was committed
overlap       two attempts of one key in flight at once, by any nodes
handed over   an occurrence that was delivered again although its partition was released cleanly in between
outlived      an attempt that began after its partition was taken in a higher epoch
owner, epoch  two nodes in one (partition, epoch); writes of an epoch after those of a higher one
version       two changes of one version that were both acknowledged
value         nodes that disagree about the value at an index; a snapshot that differs from the replayed value
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from everbell.core.cluster import NOTHING, Value, apply, decode_command, decode_value
from everbell.logs.port import LogEntry, Snapshot
from tests.checker import Checker, Seen
from tests.simulation.receivers import Attempt
from tests.value_hash import value_hash


@dataclass
class ClusterChecker:
    """Collects the reports, then judges them."""

    promises: Checker = field(default_factory=Checker)
    versions: Counter[tuple[str, int]] = field(default_factory=Counter)
    """The number of acknowledged changes, by (name, version)."""
    hashes: dict[int, str] = field(default_factory=dict)
    """The hash of the value at each index, as computed by the first node that played it."""
    broken: list[str] = field(default_factory=list)
    unclean: set[tuple[int, int]] = field(default_factory=set)
    """The (partition, epoch) that were taken from an owner that had not released them, by the log."""

    def played(self, name: str, value: Value) -> None:
        """A node has played an entry."""
        found = value_hash(value)
        if self.hashes.setdefault(value.index, found) != found:
            self.broken.append(f"value: {name} has another value at entry {value.index}")

    def violations(
        self,
        attempts: list[Attempt],
        ended: dict[tuple[str, int], tuple[int, int]],
        taken_ms: dict[tuple[int, int], int],
        unclean: set[tuple[int, int]],
    ) -> list[str]:
        """`ended` and `taken_ms` are the store's knowledge: when an occurrence ended and in which epoch, by (name,
        occurrence); and when an epoch began, by (partition, epoch). `unclean` are the (partition, epoch) that were
        taken from an owner that had not released them.
        """
        # A lease may have reached its worker late, after the attempt that replaced it.
        for attempt in sorted(attempts, key=lambda attempt: attempt.pulled and attempt.heard):
            self.promises.see(_seen(attempt))
        return [
            *self.broken,
            *self.promises.violations(),
            *_judge_ends(attempts, ended),
            *_judge_overlaps(attempts),
            *_judge_owners(attempts, taken_ms),
            *_judge_hand_overs(attempts, unclean),
            *(
                f"version: {count} changes of version {version} of {name}"
                for (name, version), count in self.versions.items()
                if count > 1
            ),
        ]

    def judge_log(self, entries: list[LogEntry], snapshots: list[Snapshot]) -> list[str]:
        """Play all entries again from the beginning, and also from the first snapshot on."""
        found = []
        kept = {snapshot.index: snapshot for snapshot in snapshots}
        value, rest = NOTHING, None
        for entry in entries:
            command = decode_command(entry.data)
            value = apply(value, entry.index, command)
            fingerprint = value_hash(value)
            self.unclean.update(
                (number, part.epoch)
                for number, part in enumerate(value.partitions)
                if part.epoch == entry.index and not part.clean
            )
            if self.hashes.get(entry.index, fingerprint) != fingerprint:
                found.append(f"value: playing the log again yields another value at entry {entry.index}")
            if entry.index in kept:
                if value_hash(decode_value(kept[entry.index].data)) != fingerprint:
                    found.append(f"value: the snapshot at {entry.index} differs")
                rest = rest or decode_value(kept[entry.index].data)
            if rest is not None:
                rest = apply(rest, entry.index, command)
        if rest is not None and value_hash(rest) != value_hash(value):
            found.append("value: a snapshot and the entries after it yield another value")
        return found


def _seen(attempt: Attempt) -> Seen:
    ended_ms = attempt.began_ms if attempt.ended_ms is None else attempt.ended_ms
    return Seen(
        attempt.name,
        attempt.occurrence,
        attempt.number,
        attempt.epoch,
        attempt.name.encode(),
        attempt.began_ms,
        ended_ms,
        attempt.accepted,
        not attempt.heard,
        attempt.clock_at,
    )


def _judge_ends(attempts: list[Attempt], ended: dict[tuple[str, int], tuple[int, int]]) -> list[str]:
    found = []
    for attempt in attempts:
        ended_ms, epoch = ended.get((attempt.name, attempt.occurrence), (attempt.began_ms, 0))
        if attempt.began_ms > ended_ms:
            late_ms = attempt.began_ms - ended_ms
            found.append(f"ended: {attempt.name} was attempted {late_ms} ms after its end was stored in epoch {epoch}")
    return found


def _judge_overlaps(attempts: list[Attempt]) -> list[str]:
    found = []
    latest: dict[str, Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.began_ms):
        if attempt.key is None:
            continue
        other = latest.get(attempt.key)
        if other is not None and other.ended_ms is not None and attempt.began_ms < other.ended_ms:
            found.append(
                f"overlap: {attempt.name} of {attempt.sender} began {other.ended_ms - attempt.began_ms} ms before "
                f"{other.name} of {other.sender} ended, key {attempt.key}"
            )
        if other is None or (attempt.ended_ms or 0) > (other.ended_ms or 0):
            latest[attempt.key] = attempt
    return found


def _judge_owners(attempts: list[Attempt], taken_ms: dict[tuple[int, int], int]) -> list[str]:
    found = []
    epochs: dict[int, list[tuple[int, int]]] = {}
    for (partition, epoch), at_ms in taken_ms.items():
        epochs.setdefault(partition, []).append((epoch, at_ms))
    for attempt in attempts:
        for epoch, at_ms in epochs.get(attempt.partition, ()):
            if epoch > attempt.epoch and attempt.began_ms > at_ms:
                late_ms = attempt.began_ms - at_ms
                found.append(f"outlived: {attempt.name} of {attempt.sender} began {late_ms} ms after epoch {epoch} did")
    return found


def _judge_hand_overs(attempts: list[Attempt], unclean: set[tuple[int, int]]) -> list[str]:
    found = []
    accepted: dict[tuple[str, int], Attempt] = {}
    for attempt in attempts:
        if not attempt.accepted:
            continue
        first = accepted.setdefault((attempt.name, attempt.occurrence), attempt)
        if first.heard and first.epoch < attempt.epoch:
            taken = any(
                partition == attempt.partition and first.epoch < epoch <= attempt.epoch for partition, epoch in unclean
            )
            if not taken:
                found.append(f"handed over: {attempt.name} was delivered again, after a release")
    return found
