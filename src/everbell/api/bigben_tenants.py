"""The tenants of BigBen: each is the policy of a tenant here, with the target and the headers of its deliveries."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from everbell.api.facade import FacadePorts
from everbell.api.tenants import put_policy
from everbell.core.bigben import bigben_tenant, native_tenant
from everbell.core.target import kafka_place
from everbell.core.tenant import Tenant
from everbell.errors import InvalidInput
from everbell.facades.bigben_request import POLICY

# BigBen sets these two itself, whatever a tenant says.
_OWN_HEADERS = ("accept", "content-type")
_CUSTOM = "CUSTOM_CLASS is refused: Everbell runs no code of others; register an HTTP or MESSAGING tenant"


class TenantConfig(Struct, frozen=True):
    """A tenant as clients of BigBen register it."""

    tenant: str | None = None
    type: Literal["HTTP", "MESSAGING", "CUSTOM_CLASS"] | None = None
    props: dict[str, Any] | None = None


class RegisteredTenants:
    """Reads and writes the tenants of BigBen."""

    def __init__(self, ports: FacadePorts) -> None:
        self._ports = ports

    async def register(self, config: TenantConfig) -> None:
        """Write the policy of a tenant. Other fields of its policy stay. Raises `InvalidInput`."""
        if config.tenant is None:
            raise InvalidInput("tenant must not be null")
        if not config.tenant.strip():
            raise InvalidInput("null or empty tenantId")
        if config.type is None:
            raise InvalidInput("null processor type")
        if config.type == "CUSTOM_CLASS":
            raise InvalidInput(_CUSTOM)
        if not config.props:
            raise InvalidInput("null or empty properties")
        target = self._url(config.props) if config.type == "HTTP" else self._topic(config.props)
        headers = _headers(config.props) | {"accept": "*/*"} if config.type == "HTTP" else {}
        policies, tenants, native = self._ports.policies, self._ports.tenants, native_tenant(config.tenant)
        assert policies is not None, "a server has policies"
        written = policies.documents().get(native)
        before = {} if written is None else msgspec.json.decode(written.document)
        await put_policy(policies, tenants, native, {**before, **POLICY, "to": target, "headers": headers}, None)

    def all(self) -> dict[str, TenantConfig]:
        """All tenants of BigBen, by name."""
        assert self._ports.policies is not None, "a server has policies"
        names = {*self._ports.policies.documents(), *(tenant.name for tenant in self._ports.tenants.named)}
        found: dict[str, TenantConfig] = {}
        for native in sorted(names):
            name = bigben_tenant(native)
            if name is not None:
                found[name] = self._config(name, self._ports.tenants.policy(native))
        return found

    def _config(self, name: str, policy: Tenant) -> TenantConfig:
        to = policy.to or ""
        if to.startswith("kafka:"):
            cluster, topic = kafka_place(to)
            brokers = self._ports.kafka.get(cluster, "")
            return TenantConfig(name, "MESSAGING", {"topic": topic, "bootstrap.servers": brokers})
        headers = {header: value for header, value in policy.headers if header not in _OWN_HEADERS}
        return TenantConfig(name, "HTTP", {"url": to, "headers": headers})

    def _url(self, props: dict[str, Any]) -> str:
        url = props.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise InvalidInput("props.url is missing, or no http:// or https:// URL")
        return url

    def _topic(self, props: dict[str, Any]) -> str:
        topic, asked = props.get("topic"), props.get("bootstrap.servers")
        if not isinstance(topic, str):
            raise InvalidInput("no topic in props")
        clusters = self._ports.kafka
        if not clusters:
            raise InvalidInput("there is no Kafka cluster: start the server with --kafka-brokers HOST:PORT")
        if asked is None and "" in clusters:
            return f"kafka://{topic}"
        named = set(_brokers(asked))
        for name, brokers in clusters.items():
            if named & set(_brokers(brokers)):
                return f"kafka://{name}/{topic}" if name else f"kafka://{topic}"
        raise InvalidInput(
            f"no Kafka cluster of this server has one of the brokers {asked!r}; add it to [kafka.clusters.NAME]"
        )


def _brokers(text: object) -> list[str]:
    names = text if isinstance(text, list) else str(text).split(",")
    return [str(name).strip() for name in names]


def _headers(props: dict[str, Any]) -> dict[str, str]:
    headers = props.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise InvalidInput("props.headers is no map of texts")
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}
