"""TLS between nodes: each shows a certificate, and both must be signed by the cluster's authority."""

from __future__ import annotations

import ssl

from everbell.errors import ClusterError


def peer_tls(certificate: str, key: str, authority: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """What a called node and a calling one use; None without files. Raises `ClusterError`."""
    if not (certificate or key or authority):
        return None, None
    if not (certificate and key and authority):
        raise ClusterError("TLS between nodes needs all of --cluster-cert, --cluster-key and --cluster-ca")
    try:
        return _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority), _context(
            ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority
        )
    except (OSError, ssl.SSLError) as wrong:
        raise ClusterError(f"TLS between nodes: {wrong}; check --cluster-cert, --cluster-key, --cluster-ca") from wrong


def _context(protocol: int, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Members are known by their certificates' authority; their addresses change.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    return context
