"""An operation for the project's own migrations: `operations = [InstallOutbox(collector="everbell")]`."""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations.base import Operation

from everbell.outbox.statements import install_script


class InstallOutbox(Operation):  # type: ignore[misc] # Django comes without types.
    """Adds `everbell.schedule` and its siblings to a PostgreSQL database, and changes no other.

    `application` and `collector` are roles, as of `everbell outbox install`. It cannot be reversed, because rows that
    wait for their collection would be lost. To remove an outbox, drop the schema `everbell`.
    """

    reduces_to_sql = True
    reversible = False

    def __init__(self, application: str | None = None, collector: str | None = None) -> None:
        self.application = application
        self.collector = collector

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The outbox has no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            # Without parameters, a percent sign in the script means itself.
            schema_editor.execute(install_script(self.application, self.collector), params=None)

    def describe(self) -> str:
        return "Install the outbox of Everbell"
