from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.url import authority_of, split_url
from everbell.errors import InvalidInput
from everbell.http.client import HttpFailure, HttpReply, OutgoingRequest
from everbell.http.client_message import encode_request


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://example.com", ("http", "example.com", 80, "/")),
        ("https://example.com/a/b?c=d&e", ("https", "example.com", 443, "/a/b?c=d&e")),
        ("HTTPS://Shop.Example:8443/Hook", ("https", "shop.example", 8443, "/Hook")),
        ("http://example.com?q=1", ("http", "example.com", 80, "/?q=1")),
        ("http://example.com/a@b:c", ("http", "example.com", 80, "/a@b:c")),
        ("http://my_service:80/", ("http", "my_service", 80, "/")),
        ("http://db.cluster.local./x", ("http", "db.cluster.local.", 80, "/x")),
        ("http://127.0.0.1:9/x", ("http", "127.0.0.1", 9, "/x")),
        ("http://[::1]:8080/x", ("http", "::1", 8080, "/x")),
        ("http://[2001:DB8:0::1]/", ("http", "2001:db8::1", 80, "/")),
        ("https://bücher.example/x", ("https", "xn--bcher-kva.example", 443, "/x")),
        ("https://EXAMPLE。com/", ("https", "example.com", 443, "/")),
        ("http://１２７.0.0.1/", ("http", "127.0.0.1", 80, "/")),
        ("http://3com.example/", ("http", "3com.example", 80, "/")),
    ],
)
def test_a_url_is_split(url: str, parts: tuple[str, str, int, str]) -> None:
    assert split_url(url) == parts


def test_an_ipv4_address_may_be_written_inside_an_ipv6_address() -> None:
    _, host, _, _ = split_url("http://[::ffff:10.0.0.1]/")
    assert IPv6Address(host) == IPv6Address("::ffff:a00:1")  # Python releases write it differently.


@pytest.mark.parametrize(
    "url",
    [
        "", "example.com", "//example.com/", "ftp://example.com/", "http:example.com", "http:///x", "http://:80/",
        "http://user@example.com/", "http://user:pass@example.com/", "http://good.example\\@evil.example/",
        "http://good.example#@evil.example/", "http://example.com/#part", "http://example.com\\evil",
        " http://example.com/", "http://example.com/ ", "http://example.com/a b", "http://exa mple.com/",
        "http://example.com/\r\nx: y", "http://example.com\r\n/", "http://example.com/\t", "http://example.com/\x00",
        "http://example.com/ü", "http://example.com/\u00a0", "http://example.com/\x7f", "http://example.com/a\n",
        "http://example.com:0/", "http://example.com:65536/", "http://example.com:/", "http://example.com:x/",
        "http://example.com:123456/", "http://example.com:٨/",
        "http://.example.com/", "http://a..b/", "http://-a.example/", "http://a-.example/", "http://exa%6dple.com/",
        "http://" + "a" * 64 + ".example/", "http://" + "a." * 130 + "example/", "http://℀.example/",
        "http://[::1/", "http://::1/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[1.2.3.4]/",
        "http://[]/", "http://[::1]x/", "http://[::g]/",
        "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/", "http://0x7f000001/", "http://0177.0.0.1/",
        "http://1.2.3.4.5/", "http://256.1.1.1/", "http://127.0.0.1./", "http://example.1/",
        "http://example.com/" + "a" * 8_192,
    ],
)  # fmt: skip
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        split_url(url)


@given(st.text() | st.from_regex(r"https?://[ -~]{1,20}(:[0-9]{1,6})?[/?]\S*", fullmatch=True))
def test_every_accepted_url_is_safe_to_write_into_a_request(url: str) -> None:
    try:
        scheme, host, port, target = split_url(url)
    except InvalidInput:
        return
    assert scheme in ("http", "https")
    assert 0 < port < 65_536
    wire = encode_request(
        OutgoingRequest(scheme, host, port, "POST", target, b"", b""), authority_of(scheme, host, port)
    )
    lines = wire.split(b"\r\n")
    assert len(lines) == 5
    assert len(lines[0].split(b" ")) == 3
    assert not set(host) & set("/?#@\\ %")


@pytest.mark.parametrize(
    ("endpoint", "authority"),
    [
        (("http", "a.example", 80), "a.example"),
        (("http", "a.example", 443), "a.example:443"),
        (("https", "a.example", 443), "a.example"),
        (("https", "::1", 8443), "[::1]:8443"),
        (("http", "::1", 80), "[::1]"),
    ],
)
def test_the_host_header_names_the_port_where_it_is_unusual(endpoint: tuple[str, str, int], authority: str) -> None:
    assert authority_of(*endpoint) == authority


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"{}", b"content-length: 2\r\n"),
        ("POST", b"", b"content-length: 0\r\n"),
        ("GET", b"", b""),
        ("HEAD", b"", b""),
        ("GET", b"x", b"content-length: 1\r\n"),
    ],
)
def test_a_request_states_its_length_where_a_body_is_expected(method: str, body: bytes, length: bytes) -> None:
    request = OutgoingRequest("http", "a.example", 80, method, "/x?y", b"a: 1\r\nb: 2\r\n", body)
    expected = method.encode() + b" /x?y HTTP/1.1\r\nhost: a.example\r\n" + length + b"a: 1\r\nb: 2\r\n\r\n" + body
    assert encode_request(request, "a.example") == expected


def test_the_headers_of_a_reply_are_read_from_its_head() -> None:
    head = (
        b"HTTP/1.1 100 Continue\r\nearly: 1\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nRetry-After: 3\r\nX-A: 1\r\nx-a: 2\r\nempty:\r\nlatin: \xe9\r\n"
        b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ntrailer: 1\r\n\r\n"
    )
    reply = HttpReply(200, head, b"x", truncated=False)
    assert reply.headers == {
        "retry-after": "3", "x-a": "1, 2", "empty": "", "latin": "é", "transfer-encoding": "chunked",
    }  # fmt: skip
    assert reply.headers is reply.headers
    assert repr(reply) == "HttpReply(status=200, body=1 bytes, truncated=False)"


def test_a_failure_has_kind_and_reason() -> None:
    failure = HttpFailure("timeout", "it took too long", sent=True)
    assert (failure.kind, failure.reason, failure.sent) == ("timeout", "it took too long", True)
    assert str(failure) == "timeout: it took too long"
