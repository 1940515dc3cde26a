"""Access keys at the start of a server: it refuses to be open to other machines, and makes the first key.

An operator needs a key to make keys over HTTP. On loopback no key is needed: a server without keys is open there.
Elsewhere `--bootstrap-key FILE` gives the cluster its first operator's key, or a new one after all others were lost. It
is the key in the file, or a new key that is written to the file, readable only by the owner of the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from everbell.clock import Clock
from everbell.cluster.player import Player
from everbell.core.access import EVERY_TENANT, ID_BYTES, SECRET_BYTES, AccessKey, key_of, keys_in, new_key
from everbell.entropy import Entropy
from everbell.errors import InvalidInput
from everbell.links.port import KeysPort
from everbell.logs.port import Log
from everbell.node.settings import Settings
from everbell.node.tenant_tables import SettingsError

_log = logging.getLogger("everbell.server")

_NONCES = 4
_NOTE = "the first key, from --bootstrap-key"


async def refuse_strangers(settings: Settings, log: Log, clock: Clock) -> None:
    """Raises `SettingsError` if other machines could reach a server without keys."""
    if settings.may_be_open or settings.bootstrap_key:
        return
    player = Player(log, clock, lambda before, after: None, lambda reason: None, settings.cluster.snapshot_entries)
    await player.catch_up()
    if not keys_in(player.value.policies):
        raise SettingsError(
            f"listening on {settings.host} lets every caller there schedule deliveries, and there are no access keys;"
            " make the first with --bootstrap-key FILE, or listen on 127.0.0.1, or insist with --insecure"
        )


async def ensure_operator(keys: KeysPort, file: str, clock: Clock, entropy: Entropy) -> None:
    """Give the cluster an operator's key, if it has none. Raises `SettingsError` and `LogError`."""
    ring = keys.ring()
    if ring.operators:
        return
    key = _read(Path(file), clock.now()) or _make(Path(file), clock.now(), entropy)
    if ring.get(key.id) is not None:
        raise SettingsError(
            f"--bootstrap-key: the key in {file} was revoked, or is for less; delete the file to get another one"
        )
    await keys.put(key)
    _log.warning("there was no operator's key: %s is one now, and its text is in %s", key.id, file)


def _read(file: Path, now: int) -> AccessKey | None:
    try:
        return key_of(file.read_text(encoding="ascii").strip(), EVERY_TENANT, ("admin",), now, _NOTE)
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise SettingsError(f"--bootstrap-key: {file} cannot be read: {wrong.strerror}") from wrong
    except (InvalidInput, UnicodeDecodeError):
        raise SettingsError(f"--bootstrap-key: {file} has no access key in it; delete it to get one") from None


def _make(file: Path, now: int, entropy: Entropy) -> AccessKey:
    key, text = new_key(entropy.nonces(_NONCES)[: ID_BYTES + SECRET_BYTES], EVERY_TENANT, ("admin",), now, _NOTE)
    try:
        # The file is written first: a key without a file would be worse than a file with a key that does not count yet.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(text + "\n")
    except OSError as wrong:
        raise SettingsError(f"--bootstrap-key: {file} cannot be written: {wrong.strerror}") from wrong
    return key
