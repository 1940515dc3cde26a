"""Lines of the log: secrets are blacked out, and nothing that came from outside can forge a line.

What is logged may hold anything that a caller sent or that a driver complains about. So every line is looked through
before it is written: access keys keep their id and lose their secret; `whsec_` secrets, bearer tokens, passwords in
URLs and values of fields that are named like secrets go. Control characters of a message are escaped, so that a line
break in an id does not become a line; the lines of a traceback are indented, so that none looks like a new entry.

For machines that read logs there is JSON, a document a line: the same text under the same rules, and what a call gives
as `extra` in fields of its own.
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

# What a line must have in it, in lower case, for a rule to be worth the time, and the rule. Lengths are bounded, so
# that no text takes longer than in proportion to its own.
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
    """The text on one line, with control characters written out."""
    return text if text.isprintable() else _CONTROL.sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class SafeFormatter(logging.Formatter):
    """Formats a record so that it can be shown to anybody who may read the log."""

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
    """A record as a JSON document on one line."""

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


_PLAIN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""What every record has; the others were given by the call."""


def _shown(name: str, value: object) -> object:
    """The value of a field without secrets, as JSON can have it."""
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
    """Log to standard error, from this process of this node, in safe lines."""
    handler = logging.StreamHandler(sys.stderr)
    middle = f"{process} " if process else ""
    text = SafeFormatter(f"%(asctime)s %(levelname)s {middle}%(message)s")
    handler.setFormatter(JsonFormatter(process, node) if layout == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
