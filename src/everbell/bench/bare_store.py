"""What bare RocksDB takes in, in a process of its own: the same rows, the same options, one synced write a batch."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter, process_time

import msgspec
from rocksdict import WriteBatch, WriteOptions

from everbell.bench.bodies import payload
from everbell.bench.dialogue import plan_told, say
from everbell.bench.plans import Sent, StorePlan
from everbell.core.event import Event
from everbell.core.ids import make_id
from everbell.entropy import SeededEntropy
from everbell.stores.rocksdb_access import open_database
from everbell.stores.rocksdb_keys import event_key
from everbell.stores.rows import labelled_row

_SPAN_MS = 3_600_000
_DUE_FROM = 1_800_000_000_000
_PARTITIONS = 256
_SEED = 7


def run(plan: StorePlan) -> Sent:
    """Write all batches, and delete each after it was written if that is part of the work."""
    database = open_database(Path(plan.directory), create=True)
    entropy = SeededEntropy(_SEED)
    options = WriteOptions()
    options.sync = True
    seconds, cpu = 0.0, process_time()
    for batch in range(plan.batches):
        first = batch * plan.size
        events = [_event(number, entropy) for number in range(first, first + plan.size)]
        keys, rows = list(map(event_key, events)), list(map(labelled_row, events))
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


def _event(number: int, entropy: SeededEntropy) -> Event:
    """An event as the engine would store it. Each is another: one row again and again would be quicker to write."""
    partition, due = number >> 6 & _PARTITIONS - 1, _DUE_FROM + int(entropy.jitter() * _SPAN_MS)
    made = make_id(due, number, partition, entropy.nonce())
    text = msgspec.json.encode(payload(number))
    return Event(made, "bench", partition, number, due, due, "queue:later", text, _DUE_FROM)


def main() -> None:
    """The process."""
    say(run(plan_told(StorePlan)))


if __name__ == "__main__":
    main()
