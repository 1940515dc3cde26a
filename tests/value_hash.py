"""A fingerprint of a cluster value: equal on all nodes that have played the same entries."""

from __future__ import annotations

from hashlib import sha256

from everbell.core.cluster import Value, encode_value


def value_hash(value: Value) -> str:
    return sha256(encode_value(value)).hexdigest()
