"""`EVERBELL` in the settings of a Django project: the server, the tenant, and the app of the worker.

Names that are missing there are taken from the environment, as by the command line: `EVERBELL_SERVER`,
`EVERBELL_TENANT`, `EVERBELL_TOKEN`, `EVERBELL_CA` and `EVERBELL_CERT`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from everbell.client.address import DEFAULT_URL, ServerAddress
from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.core.tenant import check_tenant_name
from everbell.errors import InvalidInput

_DEFAULTS = {"SERVER": DEFAULT_URL, "TENANT": "default", "TOKEN": None, "CA": None, "CERT": None}
_NAMES = (*_DEFAULTS, "APP")


@dataclass(frozen=True, slots=True)
class EverbellSettings:
    """`app` names an `everbell.App`, as in `shop.jobs.app`; the worker runs its handlers beside the tasks of Django."""

    server: str
    tenant: str
    token: str | None
    ca: str | None
    cert: str | None
    app: str | None

    def blocking_client(self) -> Client:
        return Client(self.server, self.tenant, self.token, ca=self.ca, certificate=self.cert)

    def awaiting_client(self) -> AsyncClient:
        return AsyncClient(self.server, self.tenant, self.token, ca=self.ca, certificate=self.cert)


def everbell_settings() -> EverbellSettings:
    """The settings in force. Raises `ImproperlyConfigured`."""
    given: dict[str, Any] = getattr(settings, "EVERBELL", {})
    unknown = sorted(given.keys() - set(_NAMES))
    if unknown:
        raise ImproperlyConfigured(f"EVERBELL has no setting {', '.join(unknown)}; it has {', '.join(_NAMES)}")
    values: dict[str, Any] = {
        name: given.get(name) or os.environ.get(f"EVERBELL_{name}") or default for name, default in _DEFAULTS.items()
    }
    try:
        ServerAddress(values["SERVER"], None)
        check_tenant_name(values["TENANT"])
    except InvalidInput as error:
        raise ImproperlyConfigured(f"EVERBELL: {error}") from error
    return EverbellSettings(**{name.lower(): value for name, value in values.items()}, app=given.get("APP"))


def shared_client() -> Client:
    """One client for each set of settings: it is safe between threads, and across a fork."""
    return _client(everbell_settings())


@lru_cache(maxsize=8)
def _client(wanted: EverbellSettings) -> Client:
    return wanted.blocking_client()
