"""Targets and their groups."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.core.target import TARGET_LENGTH_MAX, group_of, kafka_place, stem_of
from everbell.errors import InvalidInput


@pytest.mark.parametrize(
    ("target", "group"),
    [
        ("https://shop.example/a", "https://shop.example:443"),
        ("https://shop.example/b?c=d", "https://shop.example:443"),
        ("https://SHOP.example:443", "https://shop.example:443"),
        ("http://shop.example", "http://shop.example:80"),
        ("http://shop.example:8080/x", "http://shop.example:8080"),
        ("http://[::1]:9/x", "http://::1:9"),
        ("queue:work", "queue:work"),
        ("handler:send.mail_2-x", "handler:send.mail_2-x"),
        ("kafka://orders", "kafka://"),
        ("kafka://_orders.v1-x", "kafka://"),
        ("kafka://audit/orders", "kafka://audit"),
    ],
)
def test_a_target_belongs_to_a_group(target: str, group: str) -> None:
    assert group_of(target) == group


@pytest.mark.parametrize(
    "target",
    [
        "",
        "shop.example",
        "ftp://shop.example",
        "queue:",
        "queue",
        "queue:a b",
        "queue:-x",
        "queue:" + "q" * 129,
        "handler:é",
        "http:shop",
        "http://",
        "https:///path",
        "http://shop.example:0",
        "http://shop.example:99999",
        "http://user:pass@shop.example",
        "http://user@shop.example",
        "https://shop.example/#top",
        "http://shop.example/a b",
        "http://shop.example/\n",
        "http://[::1",
        "https://shop.example/" + "x" * TARGET_LENGTH_MAX,
        "kafka:orders",
        "kafka://",
        "kafka:///orders",
        "kafka://audit/",
        "kafka://a/b/c",
        "kafka://.",
        "kafka://..",
        "kafka://a b",
        "kafka://" + "t" * 250,
        "kafka://-audit/orders",
    ],
)
def test_an_invalid_target_is_refused(target: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        group_of(target)

    assert refused.value.field == "to"


@given(st.text(max_size=60))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    for target in (text, f"https://{text}", f"queue:{text}", f"kafka://{text}"):
        with contextlib.suppress(InvalidInput):
            assert group_of(target)


@pytest.mark.parametrize(
    ("target", "stem"),
    [
        ("https://shop.example/a/b?c=/d", "https://shop.example"),
        ("http://h/x", "http://h"),
        ("http://shop.example:8080", "http://shop.example:8080"),
        ("https://Shop.example:443/", "https://Shop.example:443"),
        ("queue:work", "queue:work"),
        ("handler:a", "handler:a"),
        ("kafka://orders", "kafka://orders"),
    ],
)
def test_a_stem_decides_the_group(target: str, stem: str) -> None:
    assert stem_of(target) == stem
    assert group_of(stem) == group_of(target)


def test_a_kafka_cluster_is_one_group_for_all_topics() -> None:
    assert stem_of("kafka://audit/orders") == stem_of("kafka://audit/payments") == "kafka://audit"
    assert kafka_place("kafka://audit/orders") == ("audit", "orders")
    assert kafka_place("kafka://orders") == ("", "orders")
