"""Words on stderr: complaints and notes, which must not get into output that a program reads."""

from __future__ import annotations

import sys

from everbell.cli.terminal import Paint, harmless


def complain(command: str, text: str) -> None:
    """One line about something that was refused or failed, after the output so far."""
    sys.stdout.flush()
    print(f"everbell {command}: {harmless(text)}", file=sys.stderr)


def note(text: str) -> None:
    sys.stdout.flush()
    print(Paint(sys.stderr)(text, "dim"), file=sys.stderr)
