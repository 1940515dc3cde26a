"""Help at any width: no line is too long, no word is lost, and examples stay usable."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbell.cli.help_text import fitted
from everbell.cli.main import all_commands, parser_of

EXAMPLES = """\
examples:
  everbell cancel ID                       one event
  everbell schedule '{"order": 17}' --to queue:mail --key order-17

Once it is done, no new attempt starts. An attempt
in flight may still arrive."""

WORDS = st.text("abc-", min_size=1, max_size=9)
LINES = st.lists(WORDS, max_size=12).map(" ".join)


def test_an_explanation_moves_below_its_command() -> None:
    assert fitted(EXAMPLES, 40).splitlines()[1:3] == ["  everbell cancel ID", "      one event"]


def test_a_long_command_can_still_be_copied() -> None:
    folded = fitted(EXAMPLES, 40)
    start = folded.index("  everbell schedule")
    command = folded[start : folded.index("\n\n")]
    assert "\\\n" in command
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(EXAMPLES.splitlines()[2])


def test_a_paragraph_is_filled_again() -> None:
    assert fitted("one two three\nfour five six", 10) == "one two\nthree four\nfive six"


def test_text_that_fits_stays_as_it_is() -> None:
    assert fitted(EXAMPLES, 80) == EXAMPLES


@given(st.lists(st.builds(lambda indent, line: indent + line, st.sampled_from(["", "  "]), LINES)), st.integers(20, 60))
def test_no_line_is_too_long_and_no_word_is_lost(lines: list[str], columns: int) -> None:
    text = "\n".join(lines)
    folded = fitted(text, columns)
    assert all(len(line) <= columns for line in folded.splitlines())
    assert [word for word in folded.split() if word != "\\"] == text.split()


@pytest.mark.parametrize("name", all_commands())
def test_the_help_of_every_command_fits_into_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, commands = parser_of(all_commands().values())
    lines = commands.choices[name].format_help().splitlines()
    # argparse never folds a group of options that exclude each other.
    long = [line for line in lines if len(line) > 80 and not line.strip().startswith("[")]
    assert not long
