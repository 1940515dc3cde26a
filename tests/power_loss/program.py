"""A random program for a RocksDB store and its local log: `python -m tests.power_loss.program FOLDER ACKS SEED STEPS`.

The steps follow from the seed alone, so that a checker can compute every state that the store passes through. After
each durable step, the program writes the number of the step to a file outside the store: that step is acknowledged.
Buffers are so small that logs are switched and tables written and merged all the time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace
from rocksdict import Options

from everbell.core.event import Event
from everbell.core.ids import partition_of
from everbell.core.time import HOUR_MS
from everbell.logs.local import LocalLog
from everbell.logs.port import Snapshot
from everbell.stores.port import Add, Block, Change, Finish, Move, Store, Unblock
from everbell.stores.rocksdb import access
from everbell.stores.rocksdb.store import RocksdbStore
from tests.conformance.store_model import StoreModel
from tests.conformance.stores import NOW, PARTITIONS, event, page_all, record

TENANTS = ("a", "ab", "relaxed")
KEYS = ("k", "k1")
FAR = NOW + 10**9
EPOCHS = dict.fromkeys(range(PARTITIONS), 1)
_KEEP = 6
_PAYLOADS = (20, 20, 20, 20, 20, 20, 200, 200, 2_000, 9_000)

ACKNOWLEDGED = {"apply": b"store", "append": b"log", "save": b"log"}
"""The steps that are durable at their end, and the part that keeps them. A relaxed tenant has no such promise."""

Step = tuple[str, Any]
"""A verb and its argument: apply changes (`relax`: of a relaxed tenant), sweep until a time, append bytes to the log,
save a snapshot, or reopen."""


class Script:
    """The steps of a seed, and the state after each of them."""

    def __init__(self, seed: int) -> None:
        self._luck = Random(seed)
        self._model = StoreModel()
        self._names: set[tuple[str, str]] = set()
        self._sequence = 0
        self._log_index = 0

    def steps(self, count: int) -> Iterator[Step]:
        for _ in range(count):
            yield self._step()

    def state(self) -> tuple[str, int]:
        """A fingerprint of the store, and the index of the log."""
        return _fingerprint(_model_view(self._model)), self._log_index

    @property
    def names(self) -> list[tuple[str, str]]:
        """The names of all events until now."""
        return sorted(self._names)

    def _step(self) -> Step:
        luck = self._luck
        kind = luck.choices(("apply", "append", "save", "sweep", "reopen"), (80, 12, 3, 3, 1))[0]
        if kind == "append":
            self._log_index += 1
            return kind, luck.randbytes(luck.choice((10, 300, 9_000)))
        if kind == "save":
            return kind, Snapshot(self._log_index, b"%d" % self._log_index * luck.choice((1, 3_000)))
        if kind == "sweep":
            now = NOW + luck.randint(0, 5) * HOUR_MS
            self._model.sweep(now, 1)  # One write, so that there is no state in between.
            return kind, now
        if kind == "reopen":
            return kind, None
        relaxed = luck.random() < 0.3
        return "relax" if relaxed else kind, [self._change(relaxed) for _ in range(luck.choice((1, 1, 2, 5, 12)))]

    def _change(self, relaxed: bool) -> Change:
        """A change, already made in the model. A group is either of relaxed tenants alone, or of others alone."""
        luck = self._luck
        own = [each for each in self._model.events.values() if (each.tenant == "relaxed") == relaxed]
        kind = luck.choice(("add", "add", "add", "move", "finish", "finish", "block"))
        change = self._add(relaxed)
        if kind == "block" and not relaxed:
            change = self._block()
        elif own and kind == "move":
            change = self._move(luck.choice(own))
        elif own and kind == "finish":
            before = luck.choice(own)
            change = Finish(before, record(before), NOW + luck.choice((0, HOUR_MS, 3 * HOUR_MS)))
        assert self._model.make(change) is None
        return change

    def _add(self, relaxed: bool) -> Change:
        luck = self._luck
        self._sequence += 1
        own_id = luck.choice((None, f"order-{self._sequence}"))
        payload = luck.randbytes(luck.choice(_PAYLOADS)).hex().encode()
        tenant = "relaxed" if relaxed else luck.choice(TENANTS[:2])
        added = event(
            self._sequence,
            tenant=tenant,
            id=own_id,
            key=luck.choice((None, *KEYS)),
            due_in=luck.randrange(10_000),
            payload=b'"%b"' % payload,
        )
        self._names.add((tenant, added.id))
        return Add(added)

    def _move(self, before: Event) -> Change:
        due_at = before.due_at + self._luck.randrange(1, 9_000)
        return Move(before, replace(before, due_at=due_at, run_at=due_at, version=before.version + 1))

    def _block(self) -> Change:
        luck = self._luck
        tenant, key = luck.choice(TENANTS[:2]), luck.choice(KEYS)
        partition = partition_of(tenant, key, PARTITIONS)
        head = luck.randrange(3)
        return Block(partition, tenant, key, head) if head else Unblock(partition, tenant, key)


def _fingerprint(view: object) -> str:
    return sha256(repr(view).encode()).hexdigest()


def _model_view(model: StoreModel) -> object:
    events = [sorted(model.scheduled(p, FAR)[0], key=lambda each: each.sequence) for p in range(PARTITIONS)]
    records = sorted((tenant, event_id) for tenant, event_id in model.names if model.get(tenant, event_id))
    found = [model.get(*name) for name in records]
    return events, [model.blocked(p) for p in range(PARTITIONS)], found, sorted(model.counts().items())


async def store_view(store: Store, names: list[tuple[str, str]]) -> str:
    """The same fingerprint of a real store; `names` are all that were ever used."""
    events = []
    for partition in range(PARTITIONS):
        found, _ = await page_all(store, partition, FAR, 1_000)
        events.append(sorted(found, key=lambda each: each.sequence))
    blocked = [list(await store.blocked(p, ("", ""), 1_000)) for p in range(PARTITIONS)]
    kept = [each for name in sorted(names) if (each := await store.get(*name)) is not None]
    return _fingerprint((events, blocked, kept, sorted((await store.counts()).items())))


def open_store(folder: Path) -> RocksdbStore:
    return RocksdbStore(
        str(folder / "store"), partitions=PARTITIONS, reserve_bytes=0, relaxed=lambda tenant: tenant == "relaxed"
    )


def use_small_buffers() -> None:
    """Make RocksDB write tables often."""
    usual = access._options

    def options() -> Options:
        small = usual()
        small.set_write_buffer_size(128 << 10)
        small.set_max_total_wal_size(256 << 10)
        small.set_target_file_size_base(128 << 10)
        small.set_max_bytes_for_level_base(256 << 10)
        small.set_level_zero_file_num_compaction_trigger(3)
        return small

    access._options = options


async def run(folder: Path, acks: int, seed: int, count: int) -> None:
    store, log = open_store(folder), LocalLog(folder / "store")
    await store.raise_fence(EPOCHS)
    for number, (kind, argument) in enumerate(Script(seed).steps(count), 1):
        os.write(acks, b"began %d\n" % number)
        if kind in ("apply", "relax"):
            assert not await store.apply(argument, EPOCHS)
        elif kind == "append":
            await log.append(argument)
        elif kind == "save" and argument.index:
            await log.save(argument, _KEEP)
        elif kind == "sweep":
            await store.sweep(argument, 1)
        elif kind == "reopen":
            await store.close()
            await log.close()
            store, log = open_store(folder), LocalLog(folder / "store")
        if kind in ACKNOWLEDGED:
            os.write(acks, b"%b %d\n" % (ACKNOWLEDGED[kind], number))
    await store.close()
    await log.close()


def main() -> None:
    folder, acks, seed, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    use_small_buffers()
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(run(folder, fd, seed, count))


if __name__ == "__main__":
    main()
