"""`everbell completion`: a script that lets a shell complete commands, options and their values.

The script is made from the parsers of all commands and contains plain lists, so that completing starts no program.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everbell.cli.parser import OK, Parser, argument, command

_NOTES = """\
examples:
  source <(everbell completion bash)                               in this shell; put it into ~/.bashrc
  everbell completion zsh > ~/.zfunc/_everbell                     a directory of $fpath
  everbell completion fish > ~/.config/fish/completions/everbell.fish"""


@dataclass(frozen=True, slots=True)
class Words:
    """The words that may follow a command."""

    name: str
    summary: str
    options: tuple[tuple[str, str], ...]
    """Options with their meanings."""
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """Options with their possible values; the empty name stands for the first argument."""


@command(
    "completion",
    "let the shell complete commands",
    "Print a script that completes commands and options of everbell in a shell.",
    _NOTES,
    argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script"),
)
def _completion(args: argparse.Namespace) -> int:
    # Imported late: the commands are found there, this one among them.
    from everbell.cli.main import all_commands, parser_of

    known = all_commands()
    _, parsers = parser_of(known.values())
    words = [words_of(name, each.summary, parsers.choices[name]) for name, each in known.items()]
    print("\n".join(_SCRIPTS[args.shell](words)))
    return OK


def words_of(name: str, summary: str, parser: Parser) -> Words:
    """The words that a parser accepts."""
    options = [(option, action.help or "") for action in parser._actions for option in action.option_strings]
    values = [
        (max(action.option_strings, key=len, default=""), tuple(map(str, action.choices)))
        for action in parser._actions
        if action.choices
    ]
    return Words(name, summary, tuple(each for each in options if each[0].startswith("--")), tuple(values))


def _bash(commands: Iterable[Words]) -> Iterator[str]:
    commands = list(commands)
    yield "_everbell() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} words="
    yield "  if ((COMP_CWORD == 1)); then"
    yield f'    words="{" ".join(each.name for each in commands)} help"'
    yield "  else"
    yield '    case "${COMP_WORDS[1]} $last" in'
    for each in commands:
        for option, values in each.values:
            pattern = f'"{each.name} {option or each.name}"'
            yield f'      {pattern}) words="{" ".join(values)}" ;;'
    yield '      *) case "${COMP_WORDS[1]}" in'
    for each in commands:
        yield f'        {each.name}) words="{" ".join(option for option, _ in each.options)}" ;;'
    yield f'        help) words="{" ".join(each.name for each in commands)}" ;;'
    yield "      esac ;;"
    yield "    esac"
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _everbell everbell"


def _zsh(commands: Iterable[Words]) -> Iterator[str]:
    yield "#compdef everbell"
    yield "# zsh runs the script for bash: both shells complete the same words."
    yield "autoload -Uz bashcompinit && bashcompinit"
    yield from _bash(commands)


def _fish(commands: Iterable[Words]) -> Iterator[str]:
    commands = list(commands)
    yield "complete -c everbell -f -n __fish_use_subcommand -a help -d 'explain a command'"
    for each in commands:
        yield f"complete -c everbell -f -n __fish_use_subcommand -a {each.name} -d {_quoted(each.summary)}"
        values = dict(each.values)
        seen = f"'__fish_seen_subcommand_from {each.name}'"
        for option, meaning in each.options:
            line = f"complete -c everbell -n {seen} -l {option[2:]} -d {_quoted(meaning)}"
            yield line + (f" -x -a {_quoted(' '.join(values[option]))}" if option in values else "")
        if "" in values:
            yield f"complete -c everbell -f -n {seen} -a {_quoted(' '.join(values['']))}"
    names = " ".join(each.name for each in commands)
    yield f"complete -c everbell -f -n '__fish_seen_subcommand_from help' -a {_quoted(names)}"


def _quoted(text: str) -> str:
    """A word of fish: inside single quotes, only quotes and backslashes are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
