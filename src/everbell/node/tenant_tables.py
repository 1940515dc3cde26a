"""The policies of tenants in a settings file, and the error of a wrong setting."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from everbell.core.document import merged
from everbell.core.policy import TenantSpec, tenant_of
from everbell.core.tenant import Tenant
from everbell.errors import EverbellError, InvalidInput


class SettingsError(EverbellError):
    """A setting is missing, unknown or wrong. The message names its origin and valid values."""


def read_tenants(
    document: Mapping[str, Any], file: str | None, base: Mapping[str, Any], special: Mapping[str, Mapping[str, Any]]
) -> tuple[Tenant, tuple[Tenant, ...]]:
    """The default policy, and those of named tenants. Raises `SettingsError`.

    `base` has the defaults that differ from the usual ones, and yields to the defaults of the file. `special` has those
    of single tenants, and yields to the file's table of that tenant only.
    """
    defaults = document.get("defaults", {})
    default = _tenant("default", defaults, base, f"{file}: defaults")
    named = []
    for name, table in ({name: {} for name in special} | document.get("tenants", {})).items():
        usual = merged(base, defaults, special.get(name, {}))
        named.append(_tenant(name, table, usual, f"{file}: tenants.{name}"))
    return default, tuple(named)


def _tenant(name: str, table: object, defaults: Mapping[str, Any], where: str) -> Tenant:
    if not isinstance(table, dict):
        raise SettingsError(f"{where} is not a table")
    try:
        return tenant_of(name, msgspec.convert(merged(defaults, table), TenantSpec, strict=False))
    except msgspec.ValidationError as wrong:
        raise SettingsError(f"{where}: {wrong}{_hint_in(str(wrong))}") from None
    except InvalidInput as wrong:
        raise SettingsError(f"{where}: {wrong}") from None


def _hint_in(message: str) -> str:
    """A suggestion for "Object contains unknown field `…`"."""
    _, marker, rest = message.partition("unknown field `")
    return hint(rest.partition("`")[0], [field.name for field in msgspec.structs.fields(TenantSpec)]) if marker else ""


def hint(name: str, known: list[str]) -> str:
    """A suggestion for a name that is unknown."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
