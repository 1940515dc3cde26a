"""A tenant's policy as people write it, in a settings file or a document: durations and sizes as text."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Annotated, Literal

from msgspec import Meta, Struct

from everbell.core.delivery_form import Form
from everbell.core.kafka_targets import PATTERN_LENGTH_MAX
from everbell.core.replication import ReplicasSpec, replication_of
from everbell.core.replication import spec_of as replicas_spec_of
from everbell.core.spec import RetrySpec, checked_headers, retry_of
from everbell.core.status_codes import DONE, PERMANENT, format_codes, parse_codes
from everbell.core.target import group_of
from everbell.core.tenant import CONSISTENCIES, BreakerPolicy, Consistency, Limits, Payloads, Tenant, check_tenant_name
from everbell.core.time import Duration, format_duration, parse_duration
from everbell.errors import InvalidInput

Positive = Annotated[int, Meta(ge=1, le=1_000_000)]

_SIZE = re.compile(r"(\d{1,12})\s*(B|kB|KiB|MB|MiB|GB|GiB)?", re.ASCII | re.IGNORECASE)
_SIZES = {"b": 1, "kb": 1_000, "kib": 1 << 10, "mb": 1_000_000, "mib": 1 << 20, "gb": 1_000_000_000, "gib": 1 << 30}
_SECRET_BYTES = range(24, 65)


class LimitsSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The largest of everything that a tenant may send."""

    payload: str | int = "256KiB"
    batch_events: Positive = 20_000
    headers: Positive = 32
    header_bytes: Positive = 4_096
    tags: Positive = 16
    depth: Positive = 64
    horizon: Duration | None = None
    pending: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    rate: Positive | None = None


class BreakerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """When a target that fails is left alone, and for how long."""

    failures: Annotated[int, Meta(ge=1, le=1_000_000, description="in a row")] = 10
    pause: Annotated[Duration, Meta(description="then one attempt is a probe")] = "30s"


class TenantSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of a tenant. Omitted fields follow the defaults."""

    to: str | None = None
    retry: RetrySpec = RetrySpec()
    on_dead: Literal["block", "park"] = "block"
    dead_letter_to: str | None = None
    retention: Duration = "1d"
    timeout: Duration = "10s"
    lease: Duration = "30s"
    in_flight: Positive = 128
    rate: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    breaker: BreakerSpec | None = None
    batch: Annotated[int, Meta(ge=1, le=1_000)] = 1
    mode: Form = "binary"
    headers: dict[str, str] = {}
    sequence_header: str | None = None
    done: tuple[str | int, ...] = DONE
    permanent: tuple[str | int, ...] = PERMANENT
    past: Literal["deliver", "reject"] = "deliver"
    past_grace: Duration = "10s"
    consistency: Annotated[str, Meta(description=", ".join(CONSISTENCIES))] = "strict"
    identity: Literal["id", "key+at+id"] = "id"
    fencing: Literal["wait", "receiver"] = "wait"
    placement: Literal["local", "spread"] = "local"
    reuse_ids: bool = False
    durability: Literal["store", "replicas"] = "store"
    replicas: ReplicasSpec = ReplicasSpec()
    payloads: Payloads = "shown"
    topics: tuple[Annotated[str, Meta(min_length=1, max_length=PATTERN_LENGTH_MAX)], ...] | None = None
    secrets: tuple[str, ...] = ()
    limits: LimitsSpec = LimitsSpec()


def tenant_of(name: str, spec: TenantSpec) -> Tenant:
    """Check a policy. Raises `InvalidInput` naming the field."""
    if spec.to is not None:
        group_of(spec.to)
    if spec.dead_letter_to is not None:
        try:
            group_of(spec.dead_letter_to)
        except InvalidInput as wrong:
            raise InvalidInput(wrong.reason, "dead_letter_to") from None
    for secret in spec.secrets:
        _check_secret(secret)
    if spec.batch > 1 and spec.mode == "payload":
        raise InvalidInput(
            "a batch is in the CloudEvents batch format: leave batch at 1, or choose another mode", "mode"
        )
    limits = spec.limits
    return Tenant(
        name=check_tenant_name(name),
        to=spec.to,
        retry=retry_of(spec.retry),
        on_dead=spec.on_dead,
        dead_letter_to=spec.dead_letter_to,
        retention_ms=parse_duration(spec.retention, "retention"),
        timeout_ms=_positive(parse_duration(spec.timeout, "timeout"), "timeout"),
        lease_ms=_positive(parse_duration(spec.lease, "lease"), "lease"),
        in_flight=spec.in_flight,
        rate=spec.rate,
        breaker=None if spec.breaker is None else _breaker_of(spec.breaker),
        batch=spec.batch,
        mode=spec.mode,
        consistency=_consistency(spec.consistency),
        headers=checked_headers(spec.headers, Limits()) if spec.headers else (),
        sequence_header=None if spec.sequence_header is None else _header_name(spec.sequence_header),
        done=parse_codes(spec.done, "done"),
        permanent=parse_codes(spec.permanent, "permanent"),
        past=spec.past,
        past_grace_ms=parse_duration(spec.past_grace, "past_grace"),
        identity=spec.identity,
        fencing=spec.fencing,
        placement=spec.placement,
        reuse_ids=spec.reuse_ids,
        durability=spec.durability,
        replicas=replication_of(spec.replicas),
        payloads=spec.payloads,
        topics=spec.topics,
        secrets=spec.secrets,
        limits=Limits(
            payload_bytes=parse_size(limits.payload, "limits.payload"),
            batch_events=limits.batch_events,
            headers=limits.headers,
            header_bytes=limits.header_bytes,
            tags=limits.tags,
            depth=limits.depth,
            horizon_ms=None if limits.horizon is None else parse_duration(limits.horizon, "limits.horizon"),
            pending=limits.pending,
            rate=limits.rate,
        ),
    )


def _header_name(name: str) -> str:
    try:
        [(lower, _)] = checked_headers({name: ""}, Limits())
    except InvalidInput as wrong:
        raise InvalidInput(wrong.reason, "sequence_header") from None
    return lower


def _consistency(name: str) -> Consistency:
    for known in CONSISTENCIES:
        if name == known:
            return known
    raise InvalidInput(f"is no consistency that is known here: there are {', '.join(CONSISTENCIES)}", "consistency")


def _breaker_of(spec: BreakerSpec) -> BreakerPolicy:
    return BreakerPolicy(spec.failures, _positive(parse_duration(spec.pause, "breaker.pause"), "breaker.pause"))


def spec_of(tenant: Tenant) -> TenantSpec:
    """A policy as people would write it, with every field."""
    retry, limits, breaker = tenant.retry, tenant.limits, tenant.breaker
    return TenantSpec(
        to=tenant.to,
        retry=RetrySpec(retry.limit, format_duration(retry.backoff_ms), format_duration(retry.max_backoff_ms)),
        on_dead=tenant.on_dead,
        dead_letter_to=tenant.dead_letter_to,
        retention=format_duration(tenant.retention_ms),
        timeout=format_duration(tenant.timeout_ms),
        lease=format_duration(tenant.lease_ms),
        in_flight=tenant.in_flight,
        rate=tenant.rate,
        breaker=None if breaker is None else BreakerSpec(breaker.failures, format_duration(breaker.pause_ms)),
        batch=tenant.batch,
        mode=tenant.mode,
        consistency=tenant.consistency,
        headers=dict(tenant.headers),
        sequence_header=tenant.sequence_header,
        done=format_codes(tenant.done),
        permanent=format_codes(tenant.permanent),
        past=tenant.past,
        past_grace=format_duration(tenant.past_grace_ms),
        identity=tenant.identity,
        fencing=tenant.fencing,
        placement=tenant.placement,
        reuse_ids=tenant.reuse_ids,
        durability=tenant.durability,
        replicas=replicas_spec_of(tenant.replicas),
        payloads=tenant.payloads,
        topics=tenant.topics,
        secrets=tenant.secrets,
        limits=LimitsSpec(
            payload=format_size(limits.payload_bytes),
            batch_events=limits.batch_events,
            headers=limits.headers,
            header_bytes=limits.header_bytes,
            tags=limits.tags,
            depth=limits.depth,
            horizon=None if limits.horizon_ms is None else format_duration(limits.horizon_ms),
            pending=limits.pending,
            rate=limits.rate,
        ),
    )


def parse_size(value: str | int, field: str) -> int:
    """Parse `64MiB`, `200kB` or a number of bytes."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise InvalidInput(f"{value!r} is not a size such as 64MiB, 200kB or a number of bytes", field)
    return int(match[1]) * _SIZES[(match[2] or "B").lower()]


def format_size(size_bytes: int) -> str | int:
    """Format a size so that `parse_size` can read it: `256KiB`, or a number of bytes if no unit fits."""
    for unit in ("GiB", "MiB", "KiB"):
        count, rest = divmod(size_bytes, _SIZES[unit.lower()])
        if count and not rest:
            return f"{count}{unit}"
    return size_bytes


def _positive(duration_ms: int, field: str) -> int:
    if duration_ms == 0:
        raise InvalidInput("must be longer than nothing", field)
    return duration_ms


def _check_secret(secret: str) -> None:
    try:
        size = len(b64decode(secret.removeprefix("whsec_"), validate=True))
    except ValueError:
        size = 0
    if not secret.startswith("whsec_") or size not in _SECRET_BYTES:
        raise InvalidInput("a secret is whsec_ followed by the base64 of 24 to 64 random bytes", "secrets")
