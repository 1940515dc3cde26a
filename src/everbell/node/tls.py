"""TLS for the HTTP API: the server's certificate, and the authority of client certificates if they are required."""

from __future__ import annotations

import logging
import ssl

from everbell.node.settings import TlsSettings
from everbell.node.tenant_tables import SettingsError

_log = logging.getLogger("everbell.server")


def server_tls(tls: TlsSettings) -> ssl.SSLContext | None:
    """The TLS context of the server. None: no files are set. Raises `SettingsError`."""
    if not (tls.certificate or tls.key or tls.client_authority):
        return None
    if not (tls.certificate and tls.key):
        raise SettingsError("TLS needs both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load(context, tls)
    if tls.client_authority:
        try:
            context.load_verify_locations(tls.client_authority)
        except OSError as wrong:
            raise SettingsError(f"--tls-client-ca: {tls.client_authority} cannot be used: {_reason(wrong)}") from wrong
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def renew_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Read the certificate again for new connections. If the new certificate is invalid, the old one stays."""
    try:
        # Loaded into a separate context first: a load that fails leaves a context with a mixture of both.
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
        _load(context, tls)
    except SettingsError as wrong:
        _log.error("the certificate was not renewed: %s", wrong)
    else:
        _log.info("read %s again", tls.certificate)


def _load(context: ssl.SSLContext, tls: TlsSettings) -> None:
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as wrong:
        message = f"--tls-cert, --tls-key: {tls.certificate} with {tls.key} cannot be used: {_reason(wrong)}"
        raise SettingsError(message) from wrong


def _reason(wrong: OSError) -> str:
    return wrong.reason or str(wrong) if isinstance(wrong, ssl.SSLError) else wrong.strerror or str(wrong)
