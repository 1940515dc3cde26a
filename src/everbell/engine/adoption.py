"""Events and changes that another node made, stored on this one. Only events that several nodes hold come this way."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from everbell.core.event import Event
from everbell.engine.edits import Edit, Edits
from everbell.engine.intake import Intake, Taken
from everbell.errors import EverbellError


class Adoption:
    """Stores them as if users of this node had made them, but without checks of versions and quotas."""

    def __init__(self, intake: Intake, edits: Edits) -> None:
        self._intake = intake
        self._edits = edits

    def add(self, events: Sequence[Event]) -> Awaitable[Sequence[Event | Taken | EverbellError]]:
        """Store new events. Returns for each the event at its place here, or the reason why it was not stored."""
        return self._intake.adopt(events)

    async def change(self, tenant: str, event_id: str, edit: Edit) -> None:
        """Store a change. If an attempt is in flight here, its outcome no longer counts.

        Raises the errors of `Edits.make`, and the errors of `edit`.
        """
        await self._edits.make(tenant, event_id, edit, None, cancels=True, frees=False)
