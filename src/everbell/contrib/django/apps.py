"""The Django application: it checks the settings at the start."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import Error, register
from django.core.exceptions import ImproperlyConfigured

from everbell.contrib.django.settings import everbell_settings


class EverbellConfig(AppConfig):  # type: ignore[misc] # Django comes without types.
    """`INSTALLED_APPS = ["everbell.contrib.django"]`."""

    name = "everbell.contrib.django"
    label = "everbell"
    verbose_name = "Everbell"

    def ready(self) -> None:
        register(_check_settings)


def _check_settings(**arguments: Any) -> list[Any]:
    try:
        everbell_settings()
        return _outbox_errors()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="everbell.E001")]


def _outbox_errors() -> list[Any]:
    """The outbox of each backend must be in a PostgreSQL database of the project."""
    if not hasattr(settings, "TASKS"):
        return []
    from everbell.contrib.django.backend import EverbellBackend
    from everbell.contrib.django.task_api import task_backends

    names = {each.outbox for each in task_backends.all() if isinstance(each, EverbellBackend)} - {None}
    wrong = [name for name in names if "postg" not in settings.DATABASES.get(name, {}).get("ENGINE", "")]
    return [
        Error(f"the OUTBOX of TASKS is {name!r}, which is no PostgreSQL database", id="everbell.E002") for name in wrong
    ]
