from __future__ import annotations

import msgspec

from everbell.core.event import Event
from everbell.core.replicas.copies import Copy, Stamp
from everbell.core.replication import Replication
from everbell.replicas.shared_values import SharedValues

read = msgspec.msgpack.Decoder(Copy).decode


def from_wire(number: int) -> Copy:
    """A copy as another node sends it: nothing in it is shared with an earlier one."""
    event = Event(f"event-{number}", "shop", 0, 0, 1_000, 1_000, "https://shop.example/bell", b"1", 900)
    stamp = Stamp(70_000 + number, "node-1")
    copy = Copy(event, None, Replication(3, 12_345, "all"), stamp=stamp, touched=stamp)
    return read(msgspec.msgpack.encode(copy))


def test_copies_share_what_they_have_in_common() -> None:
    shared = SharedValues()
    one, other = (shared.copy_with(copy, copy.event) for copy in (from_wire(1), from_wire(2)))

    assert one.replication is other.replication
    assert one.stamp is one.touched
    assert one.stamp.node is other.stamp.node


def test_a_copy_stays_the_same_value() -> None:
    shared = SharedValues()
    for number in range(2_000):
        copy = from_wire(number)
        later = Copy(None, None, Replication(1, number + 1), 2, copy.stamp, Stamp(80_000, "node-2"), "node-2")
        assert shared.copy_with(copy, copy.event) == copy
        assert shared.copy_with(later, copy.event) == msgspec.structs.replace(later, event=copy.event)
