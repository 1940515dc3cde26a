"""`everbell strategy`: the meaning of its arguments, and the messages about wrong ones."""

from __future__ import annotations

import argparse

import pytest

from everbell.cli.parser import Misuse
from everbell.cli.strategy import _strategy, _words
from everbell.core.cluster import Balanced, Group, Percentage, Strategy, Weighted


@pytest.mark.parametrize(
    ("arguments", "strategy", "words"),
    [
        (("balanced",), Balanced(), "balanced: every node the same"),
        (("weighted",), Weighted(), "weighted: by capacity"),
        (("weighted", "n1=3", "a=b=1"), Weighted({"n1": 3, "a=b": 1}), "weighted: n1=3, a=b=1"),
        (
            ("percentage", "eu:30:0:64:shop,bank", "us:20:64:8:"),
            Percentage((Group("eu", 30, 0, 64, ("shop", "bank")), Group("us", 20, 64, 8, ()))),
            (
                "percentage: eu 30% of the nodes, 64 partitions from 0 on, for shop, bank;"
                " us 20% of the nodes, 8 partitions from 64 on, for no tenant"
            ),
        ),
    ],
)
def test_arguments_become_a_strategy(arguments: tuple[str, ...], strategy: Strategy, words: str) -> None:
    kind, *details = arguments
    assert _strategy(argparse.Namespace(strategy=kind, details=details)) == strategy
    assert _words(strategy) == words


@pytest.mark.parametrize(
    ("kind", "detail", "complaint"),
    [
        ("balanced", "n1=3", "needs no details"),
        ("weighted", "n1", "is not a weight such as n1=3"),
        ("weighted", "=3", "is not a weight"),
        ("weighted", "n1=-3", "is not a weight"),
        ("percentage", "eu:30:0", "is not a group such as"),
        ("percentage", "eu:x:0:64:shop", "is not a group"),
    ],
)
def test_wrong_details_are_a_misuse(kind: str, detail: str, complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        _strategy(argparse.Namespace(strategy=kind, details=[detail]))
