"""The outboxes that a server collects: `--outbox postgresql://everbell@db/app?tenant=shop`."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from everbell.core.tenant import check_tenant_name
from everbell.errors import InvalidInput, StoreUnusable
from everbell.stores.postgres.address import read_address

DEFAULT_TENANT = "default"
_SCHEMES = ("postgresql", "postgres")


class OutboxAddress(Struct, frozen=True):
    """A database with an outbox. `dsn` may contain a password; `name` never does."""

    dsn: str
    name: str
    tenant: str | None = None
    """The tenant of all rows. None: each row may name its tenant."""

    def tenant_of(self, named: str | None) -> str:
        """The tenant of a row. Raises `InvalidInput` for a row of another tenant."""
        if self.tenant is not None and named not in (None, self.tenant):
            raise InvalidInput(f"this outbox is for the events of {self.tenant!r}, not of {named!r}", "tenant")
        return named or self.default_tenant

    @property
    def default_tenant(self) -> str:
        """The tenant of rows that name none."""
        return self.tenant or DEFAULT_TENANT


def read_outboxes(text: str) -> tuple[OutboxAddress, ...]:
    """Parse URLs with blanks between them. Raises `InvalidInput`, without a URL in the message."""
    outboxes = tuple(map(read_outbox, text.split()))
    names = [outbox.name for outbox in outboxes]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{name} is there twice")
    return outboxes


def read_outbox(url: str) -> OutboxAddress:
    """Parse the URL of one outbox. Raises `InvalidInput`."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise InvalidInput("an outbox is in PostgreSQL: write postgresql://user@host/database")
    options = parse_qsl(parts.query, keep_blank_values=True)
    tenant = dict(options).get("tenant")
    rest = urlencode([(name, value) for name, value in options if name != "tenant"])
    try:
        address = read_address(parts._replace(scheme="postgresql", query=rest).geturl())
        return OutboxAddress(address.dsn, _name(url), None if tenant is None else check_tenant_name(tenant))
    except (InvalidInput, StoreUnusable) as wrong:
        raise InvalidInput(getattr(wrong, "reason", str(wrong)).replace("?schema=everbell", "")) from None


def _name(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2] or 'localhost'}/{parts.path.strip('/')}"
