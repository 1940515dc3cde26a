"""Forgetting expired records.

Records lie by the hour in which they expire, so one range deletion removes a page of an hour. The page is read before,
only to remove the index entries that point at its records.
"""

from __future__ import annotations

from itertools import islice

from rocksdict import Rdict, WriteBatch

from everbell.stores.rocksdb import keys
from everbell.stores.rocksdb.access import get_many, scan

PAGE = 2_000  # How many records one write forgets.


def forget(db: Rdict, batch: WriteBatch, hour: int, limit: int) -> int:
    """Put the deletion of up to `limit` records of an hour into a write; returns their number."""
    start = keys.hour_prefix(hour)
    end = keys.after_prefix(start)
    records = [key for key, _ in islice(scan(db, start, end), limit)]
    entries = {key: entry for key in records if (entry := keys.index_of_record(key)) is not None}
    for (key, entry), place in zip(entries.items(), get_many(db, list(entries.values())), strict=True):
        if place == key:
            batch.delete(entry)
    if records:
        batch.delete_range(start, end if len(records) < limit else records[-1] + b"\0")
    return len(records)


def hours_in(db: Rdict) -> set[int]:
    """The hours that have records, found by seeking from one to the next."""
    hours = set()
    cursor = db.iter()
    cursor.seek(b"H")
    while cursor.valid() and (key := cursor.key())[:1] == b"H":
        hour = keys.hour_in(key)
        hours.add(hour)
        cursor.seek(keys.hour_prefix(hour + 1))
    cursor.status()
    return hours
