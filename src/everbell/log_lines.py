"""Log lines: secrets are redacted, and input cannot forge a line.

A message may contain anything that a caller sent or a driver reported. Every line is therefore filtered before it is
written. Access keys keep their id and lose their secret. `whsec_` secrets, bearer tokens, passwords in URLs and
values of fields that are named like secrets are removed. Control characters of a message are escaped, so a line
break in an id does not start a line. The lines of a traceback are indented, so none looks like a new entry.

The JSON format has one document per line: the same text under the same rules, and the `extra` of a call as fields.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Literal

import msgspec

from everbell.core.time import format_instant

LogFormat = Literal["text", "json"]

GONE = "[redacted]"

_SCHEMES = ("bearer", "basic", "digest", "negotiate")
_NAMES = ("authorization", "password", "passwd", "pwd", "secret", "token", "apikey", "api_key", "api-key")

# Each rule: substrings (lower case) that a line must contain before the pattern is tried, the pattern, its
# replacement. Lengths are bounded, so that the time is linear in the text.
_RULES = (
    (("evk_",), re.compile(r"\bevk_([a-z2-7]{15})_[A-Za-z0-9_-]*"), rf"evk_\1_{GONE}"),
    (("whsec_",), re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), f"whsec_{GONE}"),
    (
        _SCHEMES,
        re.compile(rf"\b({'|'.join(_SCHEMES)})(\s+)(?!realm\b)[^\s'\",;\\]+", re.IGNORECASE),
        rf"\1\2{GONE}",
    ),
    (
        ("://",),
        re.compile(r"\b([a-z][a-z0-9+.-]{0,20}://[^\s/:@'\"]{0,256}):[^\s'\"]{0,1024}@", re.IGNORECASE),
        rf"\1:{GONE}@",
    ),
    (
        _NAMES,
        re.compile(
            rf"((?:{'|'.join(_NAMES)})['\"]?\s{{0,8}}[=:]\s{{0,8}}b?['\"]?)"
            rf"(?!\s*(?:{'|'.join(_SCHEMES)})\b)[^\s&'\",;}}\]]+",
            re.IGNORECASE,
        ),
        rf"\1{GONE}",
    ),
)
_SECRET_NAME = re.compile("|".join(_NAMES), re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def redacted(text: str) -> str:
    """The text without secrets."""
    lower = text.lower()
    for signs, pattern, instead in _RULES:
        if any(sign in lower for sign in signs):
            text = pattern.sub(instead, text)
    return text


def escaped(text: str) -> str:
    """The text on one line, with control characters escaped."""
    return text if text.isprintable() else _CONTROL.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class SafeFormatter(logging.Formatter):
    """Formats records without secrets and on safe lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the name is logging's
        record.message = escaped(redacted(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 -- the name is logging's
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 -- the name is logging's
        return _indented(stack_info)


def _indented(text: str) -> str:
    return "\n".join("  " + escaped(line) for line in redacted(text).split("\n"))


class JsonFormatter(SafeFormatter):
    """Formats a record as a JSON document on one line."""

    def __init__(self, process: str = "", node: str = "") -> None:
        super().__init__()
        self._origin = {name: value for name, value in (("node", node), ("process", process)) if value}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": format_instant(int(record.created * 1_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            **self._origin,
        }
        if record.exc_info:
            line["error"] = redacted(logging.Formatter.formatException(self, record.exc_info))
        if record.stack_info:
            line["stack"] = redacted(record.stack_info)
        for name, value in record.__dict__.items():
            if name not in _PLAIN_FIELDS:
                line.setdefault(name, _shown(name, value))
        return msgspec.json.encode(line).decode()


# The attributes of every record; any others came from the call's `extra`.
_PLAIN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def _shown(name: str, value: object) -> object:
    """The value of a field without secrets, as a JSON value."""
    if _SECRET_NAME.search(name):
        return GONE
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _shown(str(key), part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, part) for part in value]
    return redacted(str(value))


def set_up_logging(level: str, process: str = "", *, layout: LogFormat = "text", node: str = "") -> None:
    """Log to standard error in safe lines that name this process and node."""
    handler = logging.StreamHandler(sys.stderr)
    middle = f"{process} " if process else ""
    text = SafeFormatter(f"%(asctime)s %(levelname)s {middle}%(message)s")
    handler.setFormatter(JsonFormatter(process, node) if layout == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
