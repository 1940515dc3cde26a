"""How two nodes make sure of each other before they talk.

Both prove that they know the cluster's key, without showing it: each signs the random numbers of both. The key is the
cluster's id, which only those know who can read its log, mixed with the secret of the settings where there is one. So
strangers and nodes of other clusters are refused alike. It does not hide what is said afterwards: that is what TLS is
for.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from msgspec import Struct

NONCE_BYTES = 18


class Hello(Struct, array_like=True, frozen=True):
    """The one who calls: its random number."""

    nonce: bytes


class Proof(Struct, array_like=True, frozen=True):
    """A signature; from the one who is called, together with its own random number."""

    signature: bytes
    nonce: bytes = b""


def key_of(cluster: str, secret: str) -> bytes:
    """What nodes of one cluster have in common."""
    return hmac.digest(secret.encode(), cluster.encode(), sha256)


def sign(key: bytes, role: str, caller_nonce: bytes, called_nonce: bytes) -> bytes:
    """The proof of one side; the role keeps one side from sending back what the other one sent."""
    return hmac.digest(key, role.encode() + b"\0" + caller_nonce + b"\0" + called_nonce, sha256)


def is_proof(key: bytes, role: str, caller_nonce: bytes, called_nonce: bytes, signature: bytes) -> bool:
    """Whether the other side knows the key."""
    return hmac.compare_digest(sign(key, role, caller_nonce, called_nonce), signature)
