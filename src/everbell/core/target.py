"""Targets of deliveries: `https://…`, `http://…`, `kafka://topic`, `queue:name`, `handler:name`.

A target belongs to a group: the host of a URL, the Kafka cluster, the queue, the handler. Caps and fairness apply to
groups, so a slow host with many URLs counts once.
"""

from __future__ import annotations

import re
from functools import lru_cache

from everbell.core.url import split_url
from everbell.errors import InvalidInput

TARGET_LENGTH_MAX = 2_048

_SCHEME_LENGTH_MAX = len("https://")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", re.ASCII)
_KAFKA = "kafka://"


@lru_cache(maxsize=10_000)
def group_of(target: str) -> str:
    """Check a target and return its group. Raises `InvalidInput` for the field `to`."""
    if len(target) > TARGET_LENGTH_MAX:
        raise InvalidInput(f"is longer than {TARGET_LENGTH_MAX} characters", "to")
    scheme, colon, rest = target.partition(":")
    if scheme in ("queue", "handler") and colon:
        if not _NAME.fullmatch(rest):
            raise InvalidInput(
                f"{rest[:64]!r} is not a {scheme} name: letters, digits, dot, dash and underscore, at most 128",
                "to",
            )
        return target
    if scheme in ("http", "https") and rest.startswith("//"):
        return _authority(target)
    if scheme == "kafka" and rest.startswith("//"):
        return _KAFKA + kafka_place(target)[0]
    raise InvalidInput(
        f"{target[:64]!r} is not a target; write https://…, http://…, kafka://topic, queue:name or handler:name", "to"
    )


@lru_cache(maxsize=10_000)
def kafka_place(target: str) -> tuple[str, str]:
    """The cluster and the topic of a Kafka target; the default cluster is "". Raises `InvalidInput`."""
    cluster, slash, topic = target.removeprefix(_KAFKA).rpartition("/")
    if slash and not _NAME.fullmatch(cluster):
        raise InvalidInput(f"{cluster[:64]!r} is not the name of a Kafka cluster; write kafka://cluster/topic", "to")
    return cluster, check_topic(topic, "to")


def check_topic(topic: str, field: str) -> str:
    """Refuse an invalid name of a Kafka topic."""
    if not _TOPIC.fullmatch(topic):
        raise InvalidInput(
            f"{topic[:64]!r} is not a topic: letters, digits, dot, dash and underscore, at most 249", field
        )
    return topic


def is_cluster_name(name: str) -> bool:
    """Whether the name is valid for a Kafka cluster."""
    return _NAME.fullmatch(name) is not None


def stem_of(target: str) -> str:
    """The part of a target that decides its group: for a URL, the text before its path.

    It is cheaper than `group_of`, and there are few stems even if every event has its own URL.
    """
    end = target.find("/", _SCHEME_LENGTH_MAX)
    return target if end < 0 else target[:end]


def _authority(url: str) -> str:
    try:
        scheme, host, port, _ = split_url(url)
    except InvalidInput as invalid:
        raise InvalidInput(invalid.reason, "to") from None
    return f"{scheme}://{host}:{port}"
