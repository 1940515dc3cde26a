"""Tables, colours and the bar: on a terminal, and elsewhere."""

from __future__ import annotations

import io

import pytest

from everbell.cli.terminal import Paint, Progress, Table, harmless


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Ticking:
    """A clock that moves a second at each look."""

    def __init__(self) -> None:
        self._now = 1_000_000

    def now(self) -> int:
        self._now += 1_000
        return self._now

    def elapsed_ms(self) -> int:
        return self.now()


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_colours_are_for_terminals() -> None:
    assert Paint(Terminal())("hello", "red") == "\x1b[31mhello\x1b[0m"
    assert Paint(io.StringIO())("hello", "red") == "hello"
    assert Paint(Terminal())("", "red") == ""


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_declined(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert Paint(Terminal()).status("dead") == "dead"


def test_a_padded_status_has_its_colour() -> None:
    assert Paint(Terminal()).status("dead   ") == "\x1b[31mdead   \x1b[0m"


def test_foreign_text_cannot_steer_the_terminal() -> None:
    assert harmless("a\x1b[2Jb\r\nc\u202ed") == "a\N{REPLACEMENT CHARACTER}[2Jb c\N{REPLACEMENT CHARACTER}d"
    assert harmless("abcdef", 4) == "abc…"
    assert harmless("abcd", 4) == "abcd"


def test_a_table_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(("ID", "STATUS"), Paint(io.StringIO()))
    table.print([("a", "dead"), ("longer", "x")], 1)
    table.print([("much longer", "y")])
    assert capsys.readouterr().out.splitlines() == ["ID      STATUS", "a       dead", "longer  x", "much longer  y"]


def test_progress_shows_on_a_terminal_and_goes_away() -> None:
    stream = Terminal()
    progress = Progress(200, Ticking(), stream)
    progress.show(100, 2_000)
    assert "████████████░░░░░░░░░░░░  50%  2,000 events, 2,000/s" in stream.getvalue()
    progress.clear()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_without_a_known_end_counts() -> None:
    stream = Terminal()
    Progress(None, Ticking(), stream).show(100, 3)
    assert stream.getvalue() == "\r\x1b[K3 events, 3/s"


def test_progress_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    progress = Progress(10, Ticking(), stream)
    progress.show(5, 5)
    progress.clear()
    assert stream.getvalue() == ""


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> Terminal:
    out = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", out)
    return out


def test_a_narrow_terminal_cuts_flexible_columns_and_folds_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    out = narrow(monkeypatch, 40)
    Table(("ID", "TO", "WHY"), Paint(), flexible=(1,)).print(
        [("x" * 12, "https://shop.example/a/long/path", "no end of it")]
    )
    assert out.getvalue().splitlines()[1:] == ["xxxxxxxxxxxx  https://sho…  no end of it"]


def test_the_last_column_continues_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    out = narrow(monkeypatch, 30)
    Table(("", "REASON"), Paint()).print([("#1", "the receiver answered with a long sentence")])
    assert out.getvalue().splitlines()[1:] == ["#1  the receiver answered with", "    a long sentence"]


def test_a_pipe_gets_everything_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Table(("ID", "TO"), Paint(), flexible=(1,)).print([("i" * 90, "t" * 90)])
    assert capsys.readouterr().out.splitlines()[1] == "i" * 90 + "  " + "t" * 90
