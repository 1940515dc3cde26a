from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.http.address_guard import Guard, RefusedAddress

PRIVATE_NETWORKS = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.168.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
]  # fmt: skip

private_ipv4 = st.sampled_from([IPv4Network(network) for network in PRIVATE_NETWORKS]).flatmap(
    lambda network: st.ip_addresses(v=4, network=network)
)
public_ipv4 = st.ip_addresses(v=4, network="200.0.0.0/8")  # Public even when its bits are inverted.
bits_32 = st.integers(0, 2**32 - 1)


def mapped(ipv4: IPv4Address) -> IPv6Address:
    return IPv6Address(0xFFFF << 32 | int(ipv4))


def compatible(ipv4: IPv4Address) -> IPv6Address:
    return IPv6Address(int(ipv4))


def translated(ipv4: IPv4Address) -> IPv6Address:
    return IPv6Address(0xFFFF << 48 | int(ipv4))


def six_to_four(ipv4: IPv4Address, rest: int = 1) -> IPv6Address:
    return IPv6Address(0x2002 << 112 | int(ipv4) << 80 | rest)


def nat64(ipv4: IPv4Address) -> IPv6Address:
    return IPv6Address(int(IPv6Address("64:ff9b::")) | int(ipv4))


def nat64_local(ipv4: IPv4Address, lower_bits: int, lower_shift: int) -> IPv6Address:
    """As RFC 6052 lays it out under a prefix of 48, 56, 64 or 96 bits: around the bits 64 to 71, which stay empty."""
    upper, lower = int(ipv4) >> lower_bits, int(ipv4) & ((1 << lower_bits) - 1)
    return IPv6Address(int(IPv6Address("64:ff9b:1::")) | upper << 64 | lower << lower_shift)


def teredo(server: IPv4Address, client: IPv4Address, flags_and_port: int = 0) -> IPv6Address:
    return IPv6Address(0x20010000 << 96 | int(server) << 64 | flags_and_port << 32 | int(client) ^ 0xFFFFFFFF)


def isatap(prefix: int, ipv4: IPv4Address, universal: bool) -> IPv6Address:
    return IPv6Address(prefix << 64 | (0x02005EFE if universal else 0x00005EFE) << 32 | int(ipv4))


def is_open(address: str | IPv4Address | IPv6Address, *allow: str) -> bool:
    try:
        Guard([ip_network(network) for network in allow]).check(str(address))
    except RefusedAddress:
        return False
    return True


def test_loopback_can_be_open_for_a_while() -> None:
    opened = True
    guard = Guard(opens_loopback=lambda: opened)
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        guard.check(address)
    with pytest.raises(RefusedAddress):
        guard.check("10.0.0.1")
    opened = False
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        with pytest.raises(RefusedAddress, match="loopback"):
            guard.check(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
     "2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)  # fmt: skip
def test_public_addresses_are_open(address: str) -> None:
    assert is_open(address)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("169.254.169.254", "metadata"),
        ("127.0.0.1", "loopback"),
        ("192.0.0.192", "reserved"),
        ("198.51.100.7", "documentation"),
        ("198.19.255.255", "benchmarks"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("fd00:ec2::254", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("2001:2::1", "reserved"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.0.2.45, which is reserved"),
        ("100::1", "not a public one"),
        ("5f00::1", "not a public one"),
        ("4000::1", "not a public one"),
        ("::ffff:127.0.0.1", "127.0.0.1, which is loopback"),
        ("::169.254.169.254", "metadata"),
        ("64:ff9b::a9fe:a9fe", "169.254.169.254, which is link-local"),
        ("64:ff9b:1::808:808", "local NAT64"),
        ("2002:a9fe:a9fe::", "metadata"),
    ],
)
def test_other_addresses_are_refused_with_the_reason(address: str, why: str) -> None:
    with pytest.raises(RefusedAddress) as refused:
        Guard().check(address)
    assert why in refused.value.reason
    assert "--allow-targets" in refused.value.reason


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "0x7f000001", "1.2.3.4 ", "[::1]"])
def test_text_that_is_no_address_is_refused(text: str) -> None:
    assert not is_open(text, "0.0.0.0/0", "::/0")


@given(private_ipv4)
def test_a_private_ipv4_address_is_refused(ipv4: IPv4Address) -> None:
    assert not is_open(ipv4)


@given(private_ipv4, public_ipv4, st.data())
def test_a_private_ipv4_address_is_refused_in_every_ipv6_form(
    private: IPv4Address, public: IPv4Address, data: st.DataObject
) -> None:
    prefix = data.draw(st.integers(0x2000 << 48, 0x3FFF << 48), label="ISATAP prefix")
    layout = data.draw(st.sampled_from([(16, 40), (24, 32), (32, 24), (32, 0)]), label="NAT64 layout")
    forms = {
        "mapped": mapped(private),
        "compatible": compatible(private),
        "translated": translated(private),
        "6to4": six_to_four(private, data.draw(st.integers(0, 2**80 - 1), label="6to4 rest")),
        "NAT64": nat64(private),
        "local NAT64": nat64_local(private, *layout),
        "Teredo client": teredo(public, private, data.draw(bits_32, label="Teredo port")),
        "Teredo server": teredo(private, public),
        "ISATAP": isatap(prefix, private, universal=False),
        "ISATAP, universal": isatap(prefix, private, universal=True),
    }
    assert [name for name, address in forms.items() if is_open(address)] == []
    # Opening all of IPv6 opens none of the IPv4 addresses behind it. The exceptions are the two addresses that mean
    # something else in IPv6, and the local NAT64 prefix, in which one layout cannot be told from another.
    del forms["local NAT64"]
    assert [name for name, address in forms.items() if int(address) > 1 and is_open(address, "::/0")] == []


@given(public_ipv4)
def test_a_public_ipv4_address_is_open_in_the_forms_that_lead_somewhere(ipv4: IPv4Address) -> None:
    assert all(is_open(form) for form in (ipv4, mapped(ipv4), six_to_four(ipv4), nat64(ipv4)))


def test_the_allow_list_opens_its_networks_and_nothing_else() -> None:
    development = ("127.0.0.0/8", "::1/128")
    assert is_open("127.0.0.1", *development)
    assert is_open("::1", *development)
    assert is_open("::ffff:127.0.0.1", *development)
    assert not is_open("10.0.0.1", *development)
    assert not is_open("::2", *development)
    assert not is_open("2002:7f00:1::", "::/0")
    assert is_open("64:ff9b::10.0.0.1", "10.0.0.0/8")
    assert is_open("fd12::1", "fd00::/8")
