"""The limits of a JSON payload."""

from __future__ import annotations

import re
from itertools import accumulate

from everbell.core.tenant import Limits
from everbell.errors import InvalidInput, TooLarge

_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # As signed bytes: one deeper, one less deep.


def check_json(payload: bytes, limits: Limits) -> None:
    """Refuse a payload that is too large, or nested too deep."""
    if len(payload) > limits.payload_bytes:
        raise TooLarge(f"has {len(payload)} bytes; the tenant's limit is {limits.payload_bytes}", "payload")
    # Counting brackets is enough for nearly every payload; only a suspicious one is scanned.
    if payload.count(b"[") + payload.count(b"{") > limits.depth and depth_of(payload) > limits.depth:
        raise InvalidInput(f"is nested more than {limits.depth} deep", "payload")


def depth_of(payload: bytes) -> int:
    """The nesting depth of a valid JSON text."""
    brackets = _JSON_STRING.sub(b"", payload).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0)
