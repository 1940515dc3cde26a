"""The guard of target addresses: deliveries must not become a way into the operator's own network.

A tenant names a URL, and Everbell connects to it from inside. So each address that a host resolves to is
checked before a connection is made to that very address. The name is not resolved a second time, because DNS
rebinding would then give another address.

The rules:
- IPv4 is public unless it is in the table below; IPv6 is refused unless it is global unicast and not in its
  table. The tables are ours, because `ipaddress.is_global` changes between Python releases and calls several
  of these forms global.
- An IPv6 address that carries an IPv4 address is a way to that IPv4 address, so both are checked: opening one
  with the allow list does not open the other.
- The allow list opens networks for a deployment that wants it.
- Loopback may be open for a while: a server on loopback without access keys is for development.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from everbell.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_LOOPBACK = "loopback"
_CLOSED_IPV4 = tuple(
    (IPv4Network(network), label)
    for network, label in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private (carrier NAT, and the metadata service of a cloud)"),
        ("127.0.0.0/8", _LOOPBACK),
        ("168.63.129.16/32", "the metadata service of a cloud"),
        ("169.254.0.0/16", "link-local (also the metadata service of most clouds)"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_CLOSED_IPV6 = tuple(
    (IPv6Network(network), label)
    for network, label in (
        ("::/128", "unspecified"),
        ("::1/128", _LOOPBACK),
        ("64:ff9b:1::/48", "a local NAT64 prefix"),
        ("2001::/32", "a Teredo tunnel"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved for documentation"),
        ("3fff::/20", "reserved for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_KEPT_MAX = 4_096
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
# The IPv4 address is the last 32 bits: IPv4-compatible, IPv4-translated, and both prefixes of NAT64. The
# local prefix may hold it elsewhere too (RFC 6052 knows six layouts), so that prefix is closed as a whole.
_CARRIES_AT_END = (
    IPv6Network("::/96"),
    IPv6Network("::ffff:0:0:0/96"),
    _NAT64,
    IPv6Network("64:ff9b:1::/48"),
)
# The interface identifier of ISATAP is 0000:5efe, with any universal/local and group bit, before the IPv4
# address.
_ISATAP_MASK, _ISATAP = 0xFCFFFFFF, 0x00005EFE


class RefusedAddress(InvalidInput):
    """Everbell does not connect to this address; a deployment that wants to opens its network."""

    slug = "refused-address"
    title = "The target's address is not open for deliveries"


class Guard:
    """Refuses addresses that are not public, except in the networks of the allow list."""

    def __init__(self, allow: Sequence[Network] = (), opens_loopback: Callable[[], bool] = lambda: False) -> None:
        """`opens_loopback` is asked for every loopback address."""
        self._allow = tuple(allow)
        self._opens_loopback = opens_loopback
        # The same few addresses are checked for every event and every connection.
        self._judge = lru_cache(maxsize=_KEPT_MAX)(self._reason)

    def check(self, address: str, field: str | None = None) -> None:
        """Raises `RefusedAddress` unless a connection may be made to this address. `field` named it."""
        reason = self._judge(address, self._opens_loopback())
        if reason is not None:
            raise RefusedAddress(reason, field)

    def _reason(self, address: str, opens_loopback: bool) -> str | None:
        try:
            self._check(ip_address(address), address, opens_loopback)
        except RefusedAddress as refused:
            return refused.reason
        except ValueError:
            return f"{address[:64]!r} is not an IP address"
        return None

    def _check(self, address: Address, written: str, opens_loopback: bool) -> None:
        if isinstance(address, IPv6Address):
            for carried in carried_by(address):
                self._check(carried, written, opens_loopback)
            if address in _MAPPED:
                return  # The system connects to the IPv4 address itself.
        label = _closed(address)
        if label == _LOOPBACK and opens_loopback:
            return
        if label is not None and not any(address in network for network in self._allow):
            form = "" if str(address) == written else f" leads to {address}, which"
            raise RefusedAddress(
                f"the address {written}{form} is {label}; if it is meant, open its network with --allow-targets"
            )


def literal_address(host: str) -> str | None:
    """The address that a host is, if it is one and no name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def carried_by(address: IPv6Address) -> Iterator[IPv4Address]:
    """Every IPv4 address that a connection to this IPv6 address could end at, through a tunnel or translator."""
    bits = int(address)
    # The first two addresses of ::/96 are the unspecified and the loopback address of IPv6 and carry nothing.
    if address in _MAPPED or (bits > 1 and any(address in network for network in _CARRIES_AT_END)):
        yield _ipv4(bits)
    if address in _SIX_TO_FOUR:
        yield _ipv4(bits >> 80)
    if address in _TEREDO:
        yield _ipv4(bits >> 64)  # the server
        yield _ipv4(~bits)  # the client, obscured by inverting it
    if (bits >> 32) & _ISATAP_MASK == _ISATAP:
        yield _ipv4(bits)


def _ipv4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFFFFFF)


def _closed(address: Address) -> str | None:
    """Why the address is not public, or None if it is."""
    if isinstance(address, IPv4Address):
        return next((label for network, label in _CLOSED_IPV4 if address in network), None)
    for network, label in _CLOSED_IPV6:
        if address in network:
            return label
    if address in _GLOBAL_UNICAST or address in _NAT64:
        return None
    return "not a public one"
