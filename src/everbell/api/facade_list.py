"""The facades that there are, and the reading of `--facade`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everbell.api.bigben import BigBenApi
from everbell.api.chronos import ChronosApi
from everbell.api.facade import Facade, FacadePorts, FacadeSetting
from everbell.api.pagerduty import PagerDutyApi
from everbell.core.tenant import check_tenant_name
from everbell.errors import InvalidInput

FACADES: dict[str, type[Facade]] = {facade.product: facade for facade in (ChronosApi, BigBenApi, PagerDutyApi)}
"""By product."""


def read_facades(text: str) -> tuple[FacadeSetting, ...]:
    """The facades that are switched on, with blanks between them. Raises `InvalidInput`."""
    settings = tuple(map(_read_facade, text.split()))
    products = [setting.product for setting in settings]
    for product in products:
        if products.count(product) > 1:
            raise InvalidInput(f"{product} is given more than once")
    return settings


def _read_facade(text: str) -> FacadeSetting:
    product, _, tenant = text.partition("=")
    facade = FACADES.get(product)
    if facade is None:
        raise InvalidInput(f"there is no facade {product!r}; there are {', '.join(FACADES)}")
    if facade.takes_tenant != bool(tenant):
        form = f"{product}=TENANT" if facade.takes_tenant else product
        raise InvalidInput(f"write {form}, not {text!r}")
    return FacadeSetting(product, check_tenant_name(tenant) if tenant else None)


def policies_of(settings: Sequence[FacadeSetting]) -> dict[str, Mapping[str, Any]]:
    """The fields that facades set in the policies of their tenants, by tenant."""
    return {each.tenant: FACADES[each.product].policy for each in settings if each.tenant is not None}


def make_facades(settings: Sequence[FacadeSetting], ports: FacadePorts) -> tuple[Facade, ...]:
    """The facades that are switched on."""
    return tuple(FACADES[each.product](ports, each.tenant) for each in settings)
