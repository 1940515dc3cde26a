"""`python -m reference`: write every page, or part of one, that is made from the code, where it differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from reference.commands import commands_page
from reference.packages import architecture_page
from reference.routes import routes_page
from reference.settings import settings_page

ROOT = Path(__file__).parents[1]

PAGES: dict[str, Callable[[], str]] = {
    "ARCHITECTURE.md": partial(architecture_page, ROOT / "ARCHITECTURE.md"),
    "docs/cli-reference.md": commands_page,
    "docs/http-reference.md": routes_page,
    "docs/settings.md": partial(settings_page, ROOT / "docs/settings.md"),
}


def main() -> None:
    """Write them."""
    for name, made in PAGES.items():
        text = made()
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
