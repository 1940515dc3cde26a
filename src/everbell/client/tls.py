"""TLS of a client: the authorities it trusts, and its certificate for servers that require one."""

from __future__ import annotations

import ssl

from everbell.errors import InvalidInput


def client_tls(ca: str | None, certificate: str | None) -> ssl.SSLContext | None:
    """The TLS context of a client, or None for the defaults. Raises `InvalidInput`.

    `ca` is a file of authorities to trust instead of the system's, `certificate` a file with a certificate and its key.
    """
    if not ca and not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as wrong:
        raise InvalidInput(f"{ca} cannot be used: {wrong}", "ca") from wrong
    context.set_alpn_protocols(["http/1.1"])
    if certificate:
        try:
            context.load_cert_chain(certificate)
        except OSError as wrong:
            raise InvalidInput(f"{certificate} cannot be used: {wrong}", "certificate") from wrong
    return context
