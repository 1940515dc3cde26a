"""TLS between nodes: each shows a certificate, and both must be signed by the cluster's authority."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable

from everbell.errors import ClusterError

_log = logging.getLogger("everbell.cluster")


def peer_tls(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """The contexts for accepting and for making connections; None without files. Raises `ClusterError`."""
    if not (certificate or key or authority):
        return None, None
    if not (certificate and key and authority):
        raise ClusterError("TLS between nodes needs all of --cluster-cert, --cluster-key and --cluster-ca")
    called, caller = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
    for context in (called, caller):
        _load(context, certificate, key, authority)
    return called, caller


def renew_peer_tls(contexts: Iterable[ssl.SSLContext], certificate: str, key: str, authority: str) -> None:
    """Read the files again, for connections from now on. If they are not valid, the old certificates stay in use.

    An authority that was trusted before stays trusted until the next start.
    """
    try:
        peer_tls(certificate, key, authority)  # Into new contexts first: a failed load leaves a context half changed.
        for context in contexts:
            _load(context, certificate, key, authority)
    except ClusterError as wrong:
        _log.error("the certificate of this node was not renewed: %s", wrong)
    else:
        _log.info("read %s again", certificate)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The authority of a certificate identifies a member; its address may change.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str, authority: str) -> None:
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
    except OSError as wrong:
        raise ClusterError(f"TLS between nodes: {wrong}; check --cluster-cert, --cluster-key, --cluster-ca") from wrong
