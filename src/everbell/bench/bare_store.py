"""Bare RocksDB in its own process: the same rows, the same options, one synced write per batch."""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from time import perf_counter, process_time

from rocksdict import WriteBatch, WriteOptions

from everbell.bench.bare_events import BareEvents
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import RowsPlan, Sent
from everbell.stores.rocksdb.access import open_database
from everbell.stores.rows import labelled_row

_KEY = Struct(">cHQQ")
"""As long as the keys of the store, and in the same order."""


def run(plan: RowsPlan) -> Sent:
    """Write all batches, and delete each after it was written if the plan says so."""
    database = open_database(Path(plan.place), create=True)
    bare = BareEvents(plan.size)
    options = WriteOptions()
    options.sync = True
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        events = [bare.event(*place) for place in bare.places(batch)]
        keys = [_KEY.pack(b"E", event.partition, event.run_at, event.sequence) for event in events]
        rows = list(map(labelled_row, events))
        start = perf_counter()
        puts = WriteBatch(raw_mode=True)
        for key, row in zip(keys, rows, strict=True):
            puts.put(key, row)
        database.write(puts, options)
        if plan.finish:
            deletes = WriteBatch(raw_mode=True)
            for key in keys:
                deletes.delete(key)
            database.write(deletes, options)
        seconds += perf_counter() - start
    database.close()
    return Sent(seconds, plan.batches, plan.batches * plan.size, 0, process_time() - cpu)


if __name__ == "__main__":
    say(run(plan_told(RowsPlan)))
