"""How two nodes authenticate each other before the first request.

Both prove that they know the cluster's key without showing it: each signs the random numbers of both. The key is made
from the cluster's id, which only readers of the log know, and the secret of the settings, if there is one. So a node
refuses strangers and nodes of other clusters alike. The handshake does not encrypt the connection: TLS does.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from msgspec import Struct

NONCE_BYTES = 18


class Hello(Struct, array_like=True, frozen=True):
    """From the calling node: its random number."""

    nonce: bytes


class Proof(Struct, array_like=True, frozen=True):
    """A signature; the called node adds its own random number."""

    signature: bytes
    nonce: bytes = b""


def key_of(cluster: str, secret: str) -> bytes:
    """The key that all nodes of one cluster share."""
    return hmac.digest(secret.encode(), cluster.encode(), sha256)


def sign(key: bytes, role: str, caller_nonce: bytes, called_nonce: bytes) -> bytes:
    """The proof of one side; the role keeps a node from sending back the proof that it received."""
    return hmac.digest(key, role.encode() + b"\0" + caller_nonce + b"\0" + called_nonce, sha256)


def is_proof(key: bytes, role: str, caller_nonce: bytes, called_nonce: bytes, signature: bytes) -> bool:
    """Whether the other side knows the key."""
    return hmac.compare_digest(sign(key, role, caller_nonce, called_nonce), signature)
