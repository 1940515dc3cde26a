"""The scripts for shells: the shells accept them, and complete what the parsers accept."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from everbell.cli.main import all_commands, main


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(written: str, *words: str) -> list[str]:
    """The words that bash offers for the last of `words`."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _everbell; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{written}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("everbell", "res"), ["reschedule", "resume"]),
        (("everbell", "help", "sno"), ["snooze"]),
        (("everbell", "cancel", "--dry"), ["--dry-run"]),
        (("everbell", "list", "--status", "de"), ["delivering", "delivered", "dead"]),
        (("everbell", "completion", "z"), ["zsh"]),
    ],
)
def test_bash_completes_commands_options_and_values(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], offered: list[str]
) -> None:
    assert sorted(completed(script(capsys, "bash"), *words)) == sorted(offered)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_names_every_command(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    written = script(capsys, shell)
    assert [name for name in all_commands() if name not in written] == []
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=written, text=True, check=True)
