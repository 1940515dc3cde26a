"""The front of each partition: a time before which no event is scheduled there.

RocksDB keeps a mark for each deleted row until compaction. Events are deleted at the front of a partition, so a reader
that starts at the beginning, as after a restart, would have to step over millions of marks.

- No row of a partition lies before its front. A front may be too low, but never too high. So a row that is put before
  the front lowers it, and the same write stores the lower front.
- Fronts rise in turns: after every few hundred finished events, one partition is checked. Its front stays behind the
  latest delivery, so new events rarely come before it.
- Fronts are stored after every round. A crash that loses some of them only costs steps over marks.
"""

from __future__ import annotations

from rocksdict import Rdict

from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import first_key
from everbell.stores.rocksdb.rows import numbers_row, read_numbers

ENDS_PER_LOOK = 400
BEHIND_MS = 1_000  # New events that are due this long before the latest delivery still come after the front.


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
        """An event is about to be put before the front."""
        self.at[partition] = run_at
        self._changed = True

    def row(self) -> bytes | None:
        """The row for the next write; None if the fronts have not changed."""
        return numbers_row(self.at) if self._changed else None

    def stored(self, ends: int, rung_at: int) -> None:
        """The write was made. `ends` events ended in it, the latest of them due at `rung_at`."""
        self._changed = False
        self._ends += ends
        self._rung_at = max(self._rung_at, rung_at)

    def advance(self, db: Rdict) -> None:
        """Raise fronts, if it is time. Must not be called between `lower` and the write of its row."""
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
