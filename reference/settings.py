"""The table of all settings, made from the one in the code; the rest of its page is written by hand."""

from __future__ import annotations

from pathlib import Path

from everbell.node.setting_kinds import Setting
from everbell.node.settings import SETTINGS
from reference.markdown import code, table

_TITLES = ("flag", "variable", "in the file", "default", "meaning")


def settings_page(path: Path) -> str:
    """The page as it is, with the table as it should be."""
    head, _, rest = path.read_text().partition(f"| {' | '.join(_TITLES)} |\n")
    _, _, tail = rest.partition("\n\n")
    return f"{head}{settings_table()}\n\n{tail}"


def settings_table() -> str:
    """Every setting with its flag, variable, key, default and meaning."""
    return table(_TITLES, map(_row, SETTINGS))


def _row(setting: Setting) -> tuple[str, ...]:
    flag = setting.flag if setting.metavar is None else f"{setting.flag} {setting.metavar}"
    default = code(setting.default) if setting.default else ""
    return code(flag), code(setting.variable), code(setting.name), default, setting.help
