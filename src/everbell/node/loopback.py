"""Whether events may be delivered to loopback: only by a server that listens there, and that has no access keys.

Loopback is the operator's. A server with access keys has several users, and one of them could reach services there.
The log says whether there are keys, and the guard has to know before the first attempt: a refusal is for good. So this
follows the log, instead of asking for the keys when the server is ready.
"""

from __future__ import annotations

from collections.abc import Mapping

from everbell.core.access import keys_in
from everbell.core.cluster import Policy


class Loopback:
    """Follows the access keys in the log. `will_have_keys`: the server is about to write the first one."""

    def __init__(self, *, on_loopback: bool, will_have_keys: bool) -> None:
        self._on_loopback = on_loopback
        self._will_have_keys = will_have_keys
        self._has_keys = will_have_keys
        self._documents: Mapping[str, Policy] = {}

    def follow(self, documents: Mapping[str, Policy]) -> None:
        """Look for access keys among the documents."""
        if documents is not self._documents:
            self._documents = documents
            self._has_keys = self._will_have_keys or bool(keys_in(documents))

    def is_open(self) -> bool:
        """Whether a delivery to loopback is allowed now."""
        return self._on_loopback and not self._has_keys
