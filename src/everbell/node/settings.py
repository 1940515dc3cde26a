"""The settings of a server: from flags, then `EVERBELL_*` variables, then a TOML file, then defaults.

`SETTINGS` is the only table of settings. Flags, variables, file keys and the documentation are made from it. Settings
are checked once, when they are built, and then passed to the components that need them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from socket import gethostname
from typing import Any, Literal

from msgspec import Struct

from everbell.api.facade import FacadeSetting
from everbell.api.facade_list import policies_of, read_facades
from everbell.cluster.settings import ClusterSettings
from everbell.core.tenant import Tenants
from everbell.engine.settings import EngineSettings
from everbell.errors import InvalidInput
from everbell.http.address_guard import Network
from everbell.kafka.settings import (
    KafkaSettings,
    kafka_settings,
    policies_of_topics,
    read_brokers,
    read_group,
    read_properties,
    read_topic,
    read_topics,
)
from everbell.log_lines import LogFormat
from everbell.node.setting_kinds import (
    REPLICA_BYTES,
    Setting,
    is_loopback,
    joined_text,
    number_reader,
    one_of_reader,
    read_advertised,
    read_duration,
    read_lease,
    read_level,
    read_listen,
    read_networks,
    read_size,
    read_switch,
)
from everbell.node.tenant_tables import SettingsError, hint, read_tenants
from everbell.outbox.settings import OutboxAddress, read_outboxes

ONE_PROCESS = ("rocksdb", "memory")  # The schemes of stores and logs that only one process can open.

# The variables of the commands that are clients of a server.
CLIENT_VARIABLES = ("EVERBELL_SERVER", "EVERBELL_TENANT", "EVERBELL_TOKEN", "EVERBELL_CA", "EVERBELL_CERT")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "store",
        "rocksdb:./everbell-data",
        str,
        "where events are kept: rocksdb:PATH, postgresql://…, cassandra://…, memory:, or replicas: for no store",
        "URL",
    ),
    Setting("log", "", str, "where the cluster's log is kept: a URL as for --store, or zookeeper://HOST,…/PATH", "URL"),
    Setting(
        "listen", "127.0.0.1:8420", read_listen, "the address of the HTTP API; port 0 takes any free one", "HOST:PORT"
    ),
    Setting("gateways", "0", number_reader(0, 64), "processes before the engine that take in HTTP and Kafka", "N"),
    Setting("memory", "128MiB", read_size, "what events in memory may take", "SIZE"),
    Setting(
        "replica_memory",
        "0",
        read_size,
        "what events of replicas may take; 0: none, or 256MiB where they are the default",
        "SIZE",
    ),
    Setting("lookahead", "5s", read_duration, "how far ahead events are loaded", "TIME"),
    Setting(
        "in_flight",
        "4096",
        number_reader(1, 1_000_000),
        "attempts under way at a time, over all targets; 4/5 for one tenant",
        "N",
    ),
    Setting("drain", "10s", read_duration, "how long a stop waits for attempts", "TIME"),
    Setting("partitions", "256", number_reader(1, 65_536), "slices of a new store; fixed once it is made", "N"),
    Setting("reserve_disk", "64MiB", read_size, "when less is free, new events are refused; stored ones end", "SIZE"),
    Setting("backups", "./everbell-backups", str, "the directory that copies of the store go to", "DIR"),
    Setting("max_body", "16MiB", read_size, "the largest request body", "SIZE"),
    Setting(
        "max_bodies",
        "128MiB",
        read_size,
        "the bodies of all requests under way together, in each process; at least twice max_body",
        "SIZE",
    ),
    Setting(
        "allow_targets",
        "",
        read_networks,
        "private networks that may be delivered to; loopback is allowed while listening there without access keys",
        "CIDR,…",
    ),
    Setting("node", "", str, "the name of this node in the cluster, the same after a restart; the host's name", "NAME"),
    Setting("zone", "", str, "where this node stands; backups are in another zone", "NAME"),
    Setting("capacity", "1", number_reader(1, 1_000), "its weight: twice as much owns twice as many partitions", "N"),
    Setting("gateway_only", "false", read_switch, "take requests and own nothing"),
    Setting(
        "forget_after", "1d", read_duration, "how long a dead node is expected back before it is forgotten", "TIME"
    ),
    Setting("lease", "2500ms", read_lease, "how long a node that says nothing is taken for alive", "TIME"),
    Setting("peers_listen", "127.0.0.1:0", read_listen, "where other nodes reach this one", "HOST:PORT"),
    Setting(
        "advertise", "", read_advertised, "what to tell other nodes, where it is not what this one sees", "HOST:PORT"
    ),
    Setting("cluster_secret", "", str, "what all nodes of a cluster have to know", "TEXT"),
    Setting("cluster_cert", "", str, "TLS between nodes: this node's certificate", "FILE"),
    Setting("cluster_key", "", str, "its private key", "FILE"),
    Setting("cluster_ca", "", str, "the authority that signed the certificates of all nodes", "FILE"),
    Setting("require_tenants", "false", read_switch, "only tenants with a policy of their own may schedule events"),
    Setting("insecure", "false", read_switch, "listen beyond loopback without access keys"),
    Setting(
        "bootstrap_key",
        "",
        str,
        "where there is no operator's key, take the one in this file, or make it there",
        "FILE",
    ),
    Setting("tls_cert", "", str, "TLS for the HTTP API: the certificate with its chain; read again on SIGHUP", "FILE"),
    Setting("tls_key", "", str, "its private key", "FILE"),
    Setting("tls_client_ca", "", str, "only let in clients with a certificate of this authority", "FILE"),
    Setting(
        "audit",
        "changes",
        one_of_reader("changes", "all", "off"),
        "what goes into the audit log: changes, all or off",
        "EXTENT",
    ),
    Setting("audit_file", "", str, "the audit log, one JSON document a line; else in the server's log", "FILE"),
    Setting(
        "kafka_brokers", "", read_brokers, "the Kafka cluster of kafka://topic: brokers to begin with", "HOST:PORT,…"
    ),
    Setting(
        "kafka_properties",
        "",
        read_properties,
        "more properties of librdkafka for it, such as those of TLS and SASL, as lines of name=value",
        "FILE",
    ),
    Setting(
        "kafka_topics",
        "",
        read_topics,
        "schedule the events in these topics; with the tenant of each, and :bigben or :pagerduty for their formats",
        "TOPIC[=TENANT][:FORMAT],…",
    ),
    Setting("kafka_group", "everbell", read_group, "the consumer group; the same on all nodes of a cluster", "NAME"),
    Setting(
        "kafka_dead_letters", "everbell-dead-letters", read_topic, "the topic for records that are refused", "TOPIC"
    ),
    Setting(
        "outbox",
        "",
        read_outboxes,
        "collect the events that transactions in this PostgreSQL schedule; may be given several times",
        "URL",
        separator=" ",
    ),
    Setting(
        "facade",
        "",
        read_facades,
        "also answer as another product does: bigben, chronos=TENANT, pagerduty=TENANT; may be given several times",
        "PRODUCT[=TENANT]",
        separator=" ",
    ),
    Setting("ui", "on", one_of_reader("on", "off"), "whether / is the operations page: on or off", "WHICH"),
    Setting("log_level", "info", read_level, "debug, info, warning or error", "LEVEL"),
    Setting(
        "log_format", "text", one_of_reader("text", "json"), "lines for people, or a JSON document a line", "FORMAT"
    ),
    Setting("otlp", "", str, "send traces to this collector, over OTLP and HTTP, as in http://127.0.0.1:4318", "URL"),
    Setting("ready_file", "", str, "write the server's URL into this file when it is ready", "FILE"),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


class MeetingSettings(Struct, frozen=True):
    """The address of this node for other nodes, and its certificates."""

    host: str
    port: int
    advertise: str
    secret: str
    certificate: str
    key: str
    authority: str


class TlsSettings(Struct, frozen=True):
    """The TLS files of the HTTP API. Empty: there are none."""

    certificate: str = ""
    key: str = ""
    client_authority: str = ""


class Settings(Struct, frozen=True):
    """All settings of a server, checked."""

    store: str
    log: str
    """By default that of the store."""
    has_store: bool
    replica_bytes: int
    cluster: ClusterSettings
    meeting: MeetingSettings
    host: str
    port: int
    on_loopback: bool
    may_be_open: bool
    """Whether every caller may do everything while there are no access keys."""
    bootstrap_key: str
    tls: TlsSettings
    audit: Literal["changes", "all", "off"]
    audit_file: str
    ui: bool
    gateways: int
    engine: EngineSettings
    partitions: int
    reserve_disk_bytes: int
    backups: str
    body_bytes_max: int
    bodies_bytes_max: int
    allow_targets: tuple[Network, ...]
    log_level: str
    log_format: LogFormat
    otlp: str
    ready_file: str
    tenants: Tenants
    kafka: KafkaSettings = KafkaSettings()
    outboxes: tuple[OutboxAddress, ...] = ()
    facades: tuple[FacadeSetting, ...] = ()


def load(flags: Mapping[str, str], environment: Mapping[str, str], file: str | None) -> Settings:
    """Build the settings. `flags` has the names that were given on the command line. Raises `SettingsError`."""
    document = _read_file(file) if file else {}
    values = {setting.name: _value(setting, flags, environment, document, file) for setting in SETTINGS}
    _refuse_unknown_variables(environment)
    host, port = values["listen"]
    _refuse_a_lonely_store(values["store"], values["log"])
    has_store = values["store"] != "replicas:"
    base = {} if has_store else {"durability": "replicas"}  # Fields of policies that differ from the usual defaults.
    special = policies_of(values["facade"]) | policies_of_topics(values["kafka_topics"])
    replicates = not has_store or any(fields.get("durability") == "replicas" for fields in special.values())
    replica_bytes = values["replica_memory"] or (REPLICA_BYTES if replicates else 0)  # 0: this node holds none.
    kinds = {"are_required": values["require_tenants"], "may_replicate": replica_bytes > 0}
    default, named = read_tenants(document, file, base, special)
    tenants = Tenants(default, named, **kinds)
    peers_host, peers_port = values["peers_listen"]
    return Settings(
        store=values["store"],
        log=values["log"] or (values["store"] if has_store else "memory:"),
        has_store=has_store,
        replica_bytes=replica_bytes,
        cluster=ClusterSettings(
            name=values["node"] or gethostname(),
            zone=values["zone"],
            capacity=values["capacity"],
            gateway=values["gateway_only"],
            lease_ms=values["lease"],
            forget_after_ms=values["forget_after"],
        ),
        meeting=MeetingSettings(
            peers_host,
            peers_port,
            values["advertise"],
            values["cluster_secret"],
            values["cluster_cert"],
            values["cluster_key"],
            values["cluster_ca"],
        ),
        host=host,
        port=port,
        on_loopback=is_loopback(host),
        may_be_open=is_loopback(host) or values["insecure"],
        bootstrap_key=values["bootstrap_key"],
        tls=TlsSettings(values["tls_cert"], values["tls_key"], values["tls_client_ca"]),
        audit=values["audit"],
        audit_file=values["audit_file"],
        ui=values["ui"] == "on",
        gateways=values["gateways"],
        engine=EngineSettings(
            memory_bytes=values["memory"],
            lookahead_ms=max(values["lookahead"], 200),
            in_flight=values["in_flight"],
            drain_s=values["drain"] / 1_000,
        ),
        partitions=values["partitions"],
        reserve_disk_bytes=values["reserve_disk"],
        backups=values["backups"],
        body_bytes_max=values["max_body"],
        bodies_bytes_max=max(values["max_bodies"], 2 * values["max_body"]),
        allow_targets=values["allow_targets"],
        log_level=values["log_level"],
        log_format=values["log_format"],
        otlp=values["otlp"],
        ready_file=values["ready_file"],
        tenants=tenants,
        kafka=_kafka(values, document, file),
        outboxes=values["outbox"],
        facades=values["facade"],
    )


def _kafka(values: Mapping[str, Any], document: Mapping[str, Any], file: str | None) -> KafkaSettings:
    named = document.get("kafka", {}).get("clusters", {}) if isinstance(document.get("kafka", {}), dict) else None
    if not isinstance(named, dict) or document.get("kafka", {}).keys() - {"clusters"}:
        raise SettingsError(f"{file}: kafka has tables [kafka.clusters.NAME] in it, and nothing else")
    try:
        return kafka_settings(
            values["kafka_brokers"],
            values["kafka_properties"],
            values["kafka_topics"],
            values["kafka_group"],
            values["kafka_dead_letters"],
            named,
        )
    except InvalidInput as wrong:
        where = f"{file}: kafka." if (wrong.field or "").startswith("clusters.") else "--kafka-"
        raise SettingsError(f"{where}{(wrong.field or '').replace('_', '-')}: {wrong.reason}") from None


def _refuse_a_lonely_store(store: str, log: str) -> None:
    """Refuse a store that only one process can open in a cluster of several nodes."""
    if store.partition(":")[0] in ONE_PROCESS and log.partition(":")[0] not in ("", *ONE_PROCESS):
        raise SettingsError(
            "--log: a cluster of several nodes needs a store that they share, such as postgresql://… or cassandra://…;"
            f" with {store.partition(':')[0]}: the log lives beside the store, so leave --log out"
        )


def _value(
    setting: Setting,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    document: Mapping[str, Any],
    file: str | None,
) -> Any:
    if setting.name in flags:
        text, origin = flags[setting.name], setting.flag
    elif setting.variable in environment:
        text, origin = environment[setting.variable], setting.variable
    elif setting.name in document:
        text, origin = joined_text(document[setting.name], setting.separator), f"{setting.name} in {file}"
    else:
        text, origin = setting.default, setting.flag
    try:
        return setting.read(text)
    except InvalidInput as wrong:
        raise SettingsError(f"{origin}: {wrong.reason}") from None


def _read_file(file: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as wrong:
        raise SettingsError(f"cannot read {file}: {wrong.strerror}") from None
    except ValueError as wrong:
        raise SettingsError(f"{file} is not TOML: {wrong}") from None
    known = [*_BY_NAME, "tenants", "defaults", "kafka"]
    for name in document:
        if name not in known:
            raise SettingsError(f"{file}: there is no setting {name!r}{hint(name, known)}")
    return document


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    known = [setting.variable for setting in SETTINGS] + list(CLIENT_VARIABLES)
    for name in environment:
        if name.startswith("EVERBELL_") and name not in known:
            raise SettingsError(f"there is no setting for the variable {name}{hint(name, known)}")
