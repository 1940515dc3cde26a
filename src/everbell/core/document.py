"""Policy documents: overrides of a tenant's settings, kept in the cluster's log.

A document contains only the fields of `TenantSpec` that it sets; all others follow the settings. The API shows only
the last characters of secrets. A document that contains such a shortened secret keeps the stored one, so that
clients can read, edit and write back a document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from everbell.core.policy import TenantSpec, spec_of, tenant_of
from everbell.core.tenant import Tenant
from everbell.errors import InvalidInput

Source = Literal["document", "settings", "default"]
"""The origin of a field's value: the document in the log, the node's settings, or the built-in default."""

_HIDDEN = "whsec_…"
_SHOWN_CHARACTERS = 4
_FIELDS = tuple(field.name for field in msgspec.structs.fields(TenantSpec))


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Later tables override earlier ones, field by field, also inside `retry`, `limits` and other nested tables."""
    whole: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            before = whole.get(name)
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                value = merged(before, value)
            whole[name] = value
    return whole


def policy_over(base: Tenant, document: Mapping[str, Any]) -> Tenant:
    """The policy of a tenant with a document applied. Raises `InvalidInput` naming the field."""
    table = merged(msgspec.to_builtins(spec_of(base)), document)
    try:
        return tenant_of(base.name, msgspec.convert(table, TenantSpec))
    except msgspec.ValidationError as wrong:
        raise InvalidInput(str(wrong)) from None


def sources(base: Tenant, document: Mapping[str, Any]) -> dict[str, Source]:
    """The origin of every field of a policy."""
    plain = msgspec.structs.replace(Tenant(), name=base.name)
    set_here, built_in = spec_of(base), spec_of(plain)
    return {name: _source(name, document, getattr(set_here, name) != getattr(built_in, name)) for name in _FIELDS}


def _source(name: str, document: Mapping[str, Any], is_set: bool) -> Source:
    if name in document:
        return "document"
    return "settings" if is_set else "default"


def hidden(policy: Tenant) -> TenantSpec:
    """The policy with its secrets shortened, as the API shows it."""
    spec = spec_of(policy)
    return msgspec.structs.replace(spec, secrets=tuple(map(_hidden, spec.secrets)))


def restored(document: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """The document with shortened secrets replaced by the stored ones. Raises `InvalidInput`."""
    known = {_hidden(secret): secret for secret in secrets}
    return {
        name: [_restored(secret, known) for secret in value] if name == "secrets" else value
        for name, value in document.items()
    }


def _restored(secret: str, known: Mapping[str, str]) -> str:
    if not secret.startswith(_HIDDEN):
        return secret
    if secret not in known:
        raise InvalidInput(f"{secret!r} is none of the tenant's secrets: write it out", "secrets")
    return known[secret]


def _hidden(secret: str) -> str:
    return _HIDDEN + secret[-_SHOWN_CHARACTERS:]
