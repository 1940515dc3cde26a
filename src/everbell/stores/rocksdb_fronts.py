"""Where each partition begins: a time before which nothing is scheduled there.

Events are deleted where they are read, at the front, and RocksDB leaves a mark for each until it gets around to
tidying up. A reader that starts at the very beginning, as everybody does after a restart, would have to step over
millions of them.

- A front is a promise: no row of the partition lies before it. It may be too low, never too high. So whatever is
  put before it lowers it, and in the same write as the row if the stored one has to follow.
- Fronts rise by looking: one partition after the other, a look for every few hundred events that ended. They do not
  rise to the next event but stay behind what has just rung, so that new events hardly ever come before them.
- They are stored after every round. What a crash loses of them costs some steps over marks, and nothing else.
"""

from __future__ import annotations

from rocksdict import Rdict

from everbell.stores import rocksdb_keys as keys
from everbell.stores.rocksdb_access import first_key
from everbell.stores.rocksdb_rows import numbers_row, read_numbers

ENDS_PER_LOOK = 400
BEHIND_MS = 1_000
"""New events may be late by this much, and still come after the front."""


class Fronts:
    """The fronts of all partitions."""

    def __init__(self, db: Rdict, partitions: int) -> None:
        row = db.get(keys.FRONTS_KEY)
        self.at = [0] * partitions if row is None else read_numbers(row)
        self._changed = False
        self._turn = 0
        self._ends = 0
        self._rung_at = 0

    def lower(self, partition: int, run_at: int) -> None:
        """Something is about to be put before the front."""
        self.at[partition] = run_at
        self._changed = True

    def row(self) -> bytes | None:
        """What has to be part of the next write, if anything."""
        return numbers_row(self.at) if self._changed else None

    def stored(self, ends: int, rung_at: int) -> None:
        """The write was made, in which so many events ended, the latest of them due at `rung_at`."""
        self._changed = False
        self._ends += ends
        self._rung_at = max(self._rung_at, rung_at)

    def advance(self, db: Rdict) -> None:
        """Look whether fronts can rise, if it is time. Not to be called while something that was announced is not
        written.
        """
        while self._ends >= ENDS_PER_LOOK:
            self._ends -= ENDS_PER_LOOK
            self._look(db, self._turn)
            self._turn = (self._turn + 1) % len(self.at)
            if self._turn == 0:
                self._changed = True

    def _look(self, db: Rdict, partition: int) -> None:
        prefix = keys.partition_prefix(b"E", partition)
        front_at = self._rung_at - BEHIND_MS
        if front_at <= self.at[partition]:
            return
        key = first_key(db, prefix + keys.within(self.at[partition], 0), prefix + keys.within(front_at, 0))
        self.at[partition] = front_at if key is None else keys.place_of(key)[0]
