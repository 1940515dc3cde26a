"""Strict parsing of delivery URLs: a URL that parsers are known to read differently is refused."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from everbell.errors import InvalidInput

URL_LENGTH_MAX = 8_192

# The authority ends at the first of / ? #. An @ or a backslash in it is refused, because parsers disagree about them.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]*\]|[^\[\]/?#@:\\]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][!-~]*)?",
    re.ASCII | re.IGNORECASE,
)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_HOST_LENGTH_MAX = 253
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=4_096)
def split_url(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and target (path and query) of an http or https URL. Raises `InvalidInput`.

    The host is in lower case and ASCII (IDNA); an IPv6 address has no brackets. User names, backslashes, white space
    and numbers that are almost an address are refused.
    """
    if len(url) > URL_LENGTH_MAX:
        raise InvalidInput(f"the URL is longer than {URL_LENGTH_MAX} characters")
    if "#" in url:
        raise InvalidInput("a URL to send to has no fragment (#…); leave it away")
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidInput(
            f"{url[:64]!r} cannot be sent to: write http:// or https://, a host, perhaps a port, then a path;"
            " printable ASCII characters only, and no user name"
        )
    scheme = match["scheme"].lower()
    port = int(match["port"] or _PORTS[scheme])
    if not 0 < port < 65_536:
        raise InvalidInput(f"{port} is not a port; ports go from 1 to 65535")
    target = match["target"] or "/"
    return scheme, _host(match["host"]), port, target if target[0] == "/" else f"/{target}"


def _host(text: str) -> str:
    if text[0] == "[":
        try:
            return IPv6Address(text[1:-1]).compressed
        except AddressValueError:
            raise InvalidInput(f"{text[:64]!r} is not an IPv6 address") from None
    try:
        host = text.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise InvalidInput(f"{text[:64]!r} is not a host name") from None
    labels = host.removesuffix(".").split(".")
    if len(host) > _HOST_LENGTH_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidInput(f"{text[:64]!r} is not a host name")
    return _ipv4(host) if _is_numeric(labels[-1]) else host


def _is_numeric(label: str) -> bool:
    return label.isdecimal() or label.startswith("0x")


def _ipv4(host: str) -> str:
    # The C library reads 127.1, 0x7f.1 and 2130706433 as addresses. Only four decimal numbers are accepted here.
    try:
        return str(IPv4Address(host))
    except AddressValueError:
        raise InvalidInput(f"{host[:64]!r} is not an IPv4 address; write four decimal numbers") from None


def authority_of(scheme: str, host: str, port: int) -> str:
    """The `host` header: the port is included only if it is not the scheme's default."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port == _PORTS[scheme] else f"{bracketed}:{port}"
