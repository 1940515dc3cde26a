"""The form of a delivery: CloudEvents in headers, one JSON document, the bare payload, or the JSON of BigBen.

A tenant chooses a form for all of its events, and an event may choose its own. The choice of an event is kept among its
headers, under a name that users cannot set. So nodes of the previous version keep it when they store the event again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from everbell.core.event import Event

Form = Literal["binary", "structured", "payload"]
"""The forms that users choose from."""
DeliveryForm = Literal["binary", "structured", "payload", "bigben"]
"""All forms. Events that clients of BigBen schedule have one of their own."""
Headers = Sequence[tuple[str, str]]

FORM_HEADER = "everbell-delivery"
BIGBEN_FORM = (FORM_HEADER, "bigben")
_FORMS: tuple[DeliveryForm, ...] = get_args(DeliveryForm)


def form_of(event: Event, usual: Form) -> DeliveryForm:
    """The form of an event's deliveries; `usual` is the tenant's."""
    return usual if not event.headers else own_form(event.headers) or usual


def own_form(headers: Headers) -> DeliveryForm | None:
    """The form that the event with these headers has chosen."""
    chosen = next((value for name, value in headers if name == FORM_HEADER), None)
    return next((form for form in _FORMS if form == chosen), None)


def users_headers(headers: Headers) -> tuple[tuple[str, str], ...]:
    """The headers that receivers and users see."""
    return tuple(header for header in headers if header[0] != FORM_HEADER)
