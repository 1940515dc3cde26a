"""`everbell worker`: finding the app."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbell.cli.main import main
from everbell.cli.worker import load_app
from everbell.errors import InvalidInput


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "jobs_of_test.py").write_text("from everbell import App\napp = App()\nother = 3\n")
    (tmp_path / "broken_of_test.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield
    for name in ("jobs_of_test", "broken_of_test"):
        sys.modules.pop(name, None)


def test_an_app_is_found_in_the_current_directory() -> None:
    assert load_app("jobs_of_test:app").handlers == {}


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("jobs_of_test", "does not name an app; write MODULE:APP"),
        ("jobs_of_test:a.b", "does not name an app"),
        (":app", "does not name an app"),
        (".jobs_of_test:app", "does not name an app"),
        ("jobs_of_test..inner:app", "does not name an app"),
        ("nowhere_of_test:app", "there is no module 'nowhere_of_test' here"),
        ("jobs_of_test.inner:app", "there is no module 'jobs_of_test.inner' here"),
        ("jobs_of_test:missing", "is nothing, not an everbell.App"),
        ("jobs_of_test:other", "is a int, not an everbell.App"),
    ],
)
def test_an_invalid_app_is_explained(place: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        load_app(place)


def test_a_module_that_cannot_be_imported_shows_why() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_app("broken_of_test:app")


def test_an_app_without_handlers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "jobs_of_test:app"]) == 1
    assert "the app has no handlers" in capsys.readouterr().err
