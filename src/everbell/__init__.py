"""Everbell: a durable event scheduler. Hand it a payload, a target and a time; it delivers.

`__all__` is the public surface. Each name is imported at its first use, so that a program or the command line loads
only the parts it needs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everbell.channels.handler import Refuse, Retry
    from everbell.client.answers import EventView, Scheduled
    from everbell.client.app import App
    from everbell.client.awaiting import AsyncClient
    from everbell.client.blocking import Client
    from everbell.client.key_fence import KeyFence, SqlKeyFence
    from everbell.client.task import Task
    from everbell.client.worker import Worker
    from everbell.core.occurrence import Occurrence
    from everbell.errors import EverbellError
    from everbell.library import Everbell
    from everbell.outbox.caller import AsyncOutbox, Outbox
    from everbell.outbox.once import once

__all__ = [
    "App",
    "AsyncClient",
    "AsyncOutbox",
    "Client",
    "EventView",
    "Everbell",
    "EverbellError",
    "KeyFence",
    "Occurrence",
    "Outbox",
    "Refuse",
    "Retry",
    "Scheduled",
    "SqlKeyFence",
    "Task",
    "Worker",
    "once",
]

_HOMES = {
    "App": "everbell.client.app",
    "AsyncClient": "everbell.client.awaiting",
    "AsyncOutbox": "everbell.outbox.caller",
    "Client": "everbell.client.blocking",
    "EventView": "everbell.client.answers",
    "Everbell": "everbell.library",
    "EverbellError": "everbell.errors",
    "KeyFence": "everbell.client.key_fence",
    "Occurrence": "everbell.core.occurrence",
    "Outbox": "everbell.outbox.caller",
    "Refuse": "everbell.channels.handler",
    "Retry": "everbell.channels.handler",
    "Scheduled": "everbell.client.answers",
    "SqlKeyFence": "everbell.client.key_fence",
    "Task": "everbell.client.task",
    "Worker": "everbell.client.worker",
    "once": "everbell.outbox.once",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("everbell")
    if name not in _HOMES:
        raise AttributeError(f"module 'everbell' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
