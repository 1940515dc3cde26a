"""Lines of the log: secrets are blacked out, and nothing that came from outside can forge a line.

What is logged may hold anything that a caller sent or that a driver complains about. So every line is looked through
before it is written: access keys keep their id and lose their secret; `whsec_` secrets, bearer tokens, passwords in
URLs and values of fields that are named like secrets go. Control characters of a message are escaped, so that a line
break in an id does not become a line; the lines of a traceback are indented, so that none looks like a new entry.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

GONE = "[redacted]"

_RULES = (
    (re.compile(r"\bevk_([a-z2-7]{15})_[A-Za-z0-9_-]*"), rf"evk_\1_{GONE}"),
    (re.compile(r"\bwhsec_[A-Za-z0-9+/=_-]+"), f"whsec_{GONE}"),
    (re.compile(r"\b(bearer|basic|digest|negotiate)(\s+)(?!realm\b)[^\s'\",;\\]+", re.IGNORECASE), rf"\1\2{GONE}"),
    (re.compile(r"\b([a-z][a-z0-9+.-]*://[^\s/:@'\"]*):[^\s'\"]*@", re.IGNORECASE), rf"\1:{GONE}@"),
    (
        re.compile(
            r"\b((?:\w+[_-])?(?:authorization|password|passwd|pwd|secret|token|api[_-]?key)['\"]?\s*[=:]\s*b?['\"]?)"
            r"(?!\s*(?:bearer|basic|digest|negotiate)\b)[^\s&'\",;}\]]+",
            re.IGNORECASE,
        ),
        rf"\1{GONE}",
    ),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def redacted(text: str) -> str:
    """The text without secrets."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def escaped(text: str) -> str:
    """The text on one line, with control characters written out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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


def set_up_logging(level: str, process: str = "") -> None:
    """Log to standard error, from this process, in safe lines."""
    handler = logging.StreamHandler(sys.stderr)
    middle = f"{process} " if process else ""
    handler.setFormatter(SafeFormatter(f"%(asctime)s %(levelname)s {middle}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
