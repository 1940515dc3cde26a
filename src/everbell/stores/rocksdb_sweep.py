"""Forgetting records whose time is over.

Records lie by the hour in which they expire, so whole hours go, with a range deletion for each page. A page is read
before it goes only to find the index entries of client-given ids, which have to go with it, unless they name
something newer by now.
"""

from __future__ import annotations

from itertools import islice

from rocksdict import Rdict, WriteBatch

from everbell.stores import rocksdb_keys as keys
from everbell.stores.rocksdb_access import get_many, scan

PAGE = 2_000
"""Records that are forgotten in one write."""


def forget(db: Rdict, hour: int, limit: int) -> tuple[WriteBatch, int]:
    """The write that forgets up to `limit` records of an hour, and how many those are."""
    batch = WriteBatch(raw_mode=True)
    start = keys.hour_prefix(hour)
    end = keys.after_prefix(start)
    records = [key for key, _ in islice(scan(db, start, end), limit)]
    entries = {key: entry for key in records if (entry := keys.index_of_record(key)) is not None}
    for (key, entry), place in zip(entries.items(), get_many(db, list(entries.values())), strict=True):
        if place == key:
            batch.delete(entry)
    if records:
        batch.delete_range(start, end if len(records) < limit else records[-1] + b"\0")
    return batch, len(records)


def hours_in(db: Rdict) -> set[int]:
    """The hours that have records, found by leaping from one to the next."""
    hours = set()
    cursor = db.iter()
    cursor.seek(b"H")
    while cursor.valid() and (key := cursor.key())[:1] == b"H":
        hour = keys.hour_in(key)
        hours.add(hour)
        cursor.seek(keys.hour_prefix(hour + 1))
    cursor.status()
    return hours
