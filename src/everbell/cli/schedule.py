"""`everbell schedule`: one event from the command line, or as many as a file has lines."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import DecodeError
from msgspec import json as msgspec_json

from everbell.cli.event_lines import EventLines
from everbell.cli.options import add_server_options, add_time_options, duration, open_client, positive
from everbell.cli.parser import FAILED, OK, TIMES, Misuse, argument, command
from everbell.cli.printing import due_text, print_json, print_result
from everbell.cli.repeat_options import add_repeat_options, repeat_field
from everbell.cli.reporting import complain
from everbell.cli.terminal import Progress, harmless
from everbell.client.answers import BatchResult
from everbell.clock import SystemClock
from everbell.core.delivery_form import Form
from everbell.core.replication import DURABILITIES
from everbell.errors import EverbellError, InvalidInput

LINES_SUFFIXES = (".ndjson", ".jsonl")
_REFUSALS_SHOWN_MAX = 20
_OTHERS = ("replaced", "cancelled", "unknown")

_NOTES = f"""\
examples:
  everbell schedule '{{"order": 17}}' --in 20m --to https://shop.example/timeouts
  everbell schedule '{{"order": 17}}' --at 2026-11-20T10:00:00+01:00 --to queue:mail --key order-17
  everbell schedule '"wake up"' --every 30s --count 6 --to queue:alarms
  everbell schedule --cron "0 9 * * MON-FRI" --tz Europe/Berlin --misfire latest --to queue:reports --id daily-report
  everbell schedule @report.json --in 1h --to queue:reports --id report-7
  jq -c .order order.json | everbell schedule - --in 5m --to queue:orders
  everbell schedule @events.ndjson --to queue:orders      one whole event a line

payload:
  any JSON; text needs its own quotes: '"hello"'. Without a payload it is null.
  @FILE reads it from a file, - from standard input.
  A file named *.ndjson or *.jsonl, or any with --lines, has a whole event on each line,
    {{"payload": {{"order": 17}}, "in": "20m", "to": "queue:orders", "id": "order-17"}}
  and options fill in missing fields. A line may also replace or cancel an event:
    {{"mode": "put", "id": "order-17", …}} or {{"mode": "cancel", "id": "order-17"}}
  Lines of one id take effect in their order. A refused line is named on stderr, and does not affect the others.

With an --id of your own, repeating a command is safe: the event is scheduled once.

{TIMES}"""


def _attempts(text: str) -> int | Literal["unlimited"]:
    return "unlimited" if text == "unlimited" else positive(text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a header; write NAME:VALUE")
    return name.strip(), value.strip()


@command(
    "schedule",
    "schedule an event, or many",
    "Schedule an event, or a file of them.",
    _NOTES,
    argument("payload", metavar="PAYLOAD", nargs="?", help="JSON, @FILE, or - for standard input"),
    partial(add_time_options, required=False),
    argument("--to", metavar="TARGET", help="https://…, http://…, queue:NAME, or handler:NAME"),
    argument("--id", help="your own id, unique in the tenant; makes repeating safe"),
    argument("--key", help="events of one key go one at a time, in order"),
    argument("--tag", dest="tags", metavar="TAG", action="append", help="to find it by; may be repeated"),
    argument(
        "--header",
        dest="headers",
        metavar="NAME:VALUE",
        type=_header,
        action="append",
        help="sent along with the delivery; may be repeated",
    ),
    argument("--retry-attempts", metavar="N", type=_attempts, help="all attempts before it is dead, or unlimited"),
    argument(
        "--delivery",
        metavar="FORM",
        choices=get_args(Form),
        help="binary, structured (one JSON document) or payload, instead of the tenant's mode",
    ),
    argument("--expires", metavar="DURATION", type=duration, help="not delivered later than this after it was due"),
    argument("--durability", choices=DURABILITIES, help="in the store, or in the memory of several nodes"),
    argument("--replicas", metavar="N", type=positive, help="how many nodes hold it, with durability replicas"),
    argument("--lines", action="store_true", help="a whole event on each line of the input"),
    add_repeat_options,
    add_server_options,
)
def _schedule(args: argparse.Namespace) -> int:
    source: str | None = args.payload
    fields = _fields(args)
    is_input = source is not None and (source == "-" or source.startswith("@"))
    if args.lines and not is_input:
        raise Misuse("--lines needs a file: write @FILE, or - for standard input")
    if is_input and source is not None and (args.lines or source.endswith(LINES_SUFFIXES)):
        return _schedule_lines(args, source, fields)
    if "in" not in fields and "at" not in fields and "repeat" not in fields:
        raise Misuse("say when: --in 20m, or --at 2026-11-20T10:00:00Z")
    fields["in_"] = fields.pop("in", None)
    with open_client(args) as client:
        scheduled = client.schedule(_payload(source), **fields)
    print_result(scheduled, due_text(scheduled.id, scheduled.at), as_json=args.json)
    return OK


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the event in the options, by their names in JSON."""
    fields = {
        "at": args.at,
        "in": args.in_ or (args.every if args.at is None else None),
        "to": args.to,
        "id": args.id,
        "key": args.key,
        "tags": args.tags,
        "headers": dict(args.headers) if args.headers else None,
        "repeat": repeat_field(args),
        "retry": _retry(args.retry_attempts),
        "delivery": args.delivery,
        "expires": args.expires,
        "durability": args.durability,
        "replicas": None if args.replicas is None else {"count": args.replicas},
    }
    return _given(**fields)


def _retry(attempts: int | Literal["unlimited"] | None) -> dict[str, int | None] | None:
    return None if attempts is None else {"max_attempts": None if attempts == "unlimited" else attempts}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _payload(source: str | None) -> Any:
    if source is None:
        return None
    text = sys.stdin.buffer.read() if source == "-" else source.encode()
    if source.startswith("@"):
        text = _read(source[1:])
    try:
        return msgspec_json.decode(text)
    except DecodeError as error:
        is_text = source[:1] not in ("@", "-", "{", "[", '"')
        advice = f"; for text, write '\"{harmless(source, 30)}\"'" if is_text else ""
        raise Misuse(f"the payload is not JSON ({error}){advice}") from error


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error


def _schedule_lines(args: argparse.Namespace, source: str, defaults: dict[str, Any]) -> int:
    if args.id is not None:
        raise Misuse("--id names one event; put an id on each line instead")
    with EventLines.open(None if source == "-" else source[1:], defaults) as lines, open_client(args) as client:
        progress = Progress(lines.size_bytes, SystemClock())
        report = _LineReport(args.json, progress)
        try:
            for batch in client.schedule_batches(lines):
                report.add(batch, lines)
                progress.show(lines.read_bytes, report.accepted)
        except EverbellError:
            progress.clear()
            complain("schedule", f"stopped after {lines.settled} lines, of which {report.accepted} were scheduled")
            raise
        report.add(BatchResult([]), lines)
    return report.end()


class _LineReport:
    """Prints the outcome of the lines as it becomes known. The progress bar is cleared for each print."""

    def __init__(self, as_json: bool, progress: Progress) -> None:
        self._as_json = as_json
        self._progress = progress
        self._counts: Counter[str] = Counter()
        self.refused = 0

    @property
    def accepted(self) -> int:
        return self._counts.total()

    def add(self, batch: BatchResult, lines: EventLines) -> None:
        for settled in lines.settle(batch):
            if settled.id is not None:
                self._counts[settled.status] += 1
            else:
                self._refuse(settled.line, settled.reason)
            if self._as_json:
                self._progress.clear()
                print_json(settled)

    def _refuse(self, line: int, reason: str | None) -> None:
        self.refused += 1
        if self.refused <= _REFUSALS_SHOWN_MAX + 1:
            self._progress.clear()
        if self.refused <= _REFUSALS_SHOWN_MAX:
            complain("schedule", f"line {line}: {reason}")
        elif self.refused == _REFUSALS_SHOWN_MAX + 1:
            complain("schedule", "more lines were refused; --json names them all")

    def end(self) -> int:
        self._progress.clear()
        if not self._as_json:
            counts = [f"{status} {self._counts[status]:,}" for status in _OTHERS if self._counts[status]]
            refused = [f"refused {self.refused:,}"] if self.refused else []
            print(", ".join([f"scheduled {self._counts['created']:,} events", *counts, *refused]))
        return FAILED if self.refused else OK
