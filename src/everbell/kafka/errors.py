"""The meaning of Kafka's errors for an attempt, and the advice for operators."""

from __future__ import annotations

from confluent_kafka import KafkaError

from everbell.core.retry import Outcome

NO_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
_WRONG = frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,
    }
)
_GIVEN_UP = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


def trouble_of(error: KafkaError, known: str | None) -> str:
    """Why brokers cannot be reached. A known cause says more than "all brokers are down"."""
    return known if known is not None and error.code() == KafkaError._ALL_BROKERS_DOWN else error.str()


def outcome_of(error: KafkaError, topic: str, timeout_ms: int, trouble: str | None = None) -> Outcome:
    """The outcome of an attempt that ended with `error`; `trouble` is its cause, if known."""
    code, text = error.code(), error.str()
    if code in NO_TOPIC:
        return Outcome("refused", f"there is no topic {topic!r}: create it, then redrive the event", code)
    if code in TOO_LARGE:
        return Outcome("refused", f"the record is larger than the topic {topic!r} allows (max.message.bytes)", code)
    if code in _FORBIDDEN:
        return Outcome("refused", f"Everbell may not write to the topic {topic!r}: {text}", code)
    if code in _WRONG:
        return Outcome("refused", text, code)
    if code == KafkaError._MSG_TIMED_OUT:
        why = "" if trouble is None else f": {trouble}"
        return Outcome("timeout", f"no broker took the record within {timeout_ms} ms{why}", code)
    if code in _GIVEN_UP:
        return Outcome("lost", text, code)
    return Outcome("failed", f"{error.name()}: {text}", code)
