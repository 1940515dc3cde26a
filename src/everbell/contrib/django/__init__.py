"""Everbell in a Django project: settings, the outbox of a transaction, and the worker `manage.py everbell_worker`.

INSTALLED_APPS = [..., "everbell.contrib.django"]
EVERBELL = {"SERVER": "http://bell:8420", "TENANT": "shop"}
TASKS = {"default": {"BACKEND": "everbell.contrib.django.backend.EverbellBackend", "OPTIONS": {"OUTBOX": "default"}}}

with transaction.atomic():
    order.save()
    outbox().schedule({"order": order.pk}, to="queue:mail", in_="20m", id=f"remind-{order.pk}")
"""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections

from everbell.client.blocking import Client
from everbell.contrib.django.settings import everbell_settings, shared_client
from everbell.outbox.caller import Outbox

__all__ = ["client", "outbox"]


def client() -> Client:
    """The client of the server in the settings, one for all threads of this process."""
    return shared_client()


def outbox(using: str = DEFAULT_DB_ALIAS) -> Outbox:
    """The outbox of one of the project's databases: events that exist if the transaction commits."""
    return Outbox(connections[using], everbell_settings().tenant)
