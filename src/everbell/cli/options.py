"""Options that many commands share: the server, the output and the time."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from everbell.cli.parser import Parser
from everbell.client.address import DEFAULT_URL, ServerAddress
from everbell.client.blocking import Client
from everbell.core.spec import shift_of
from everbell.core.tenant import check_tenant_name
from everbell.core.time import parse_duration, parse_instant
from everbell.errors import InvalidInput

T = TypeVar("T")

SERVER_GROUP = "server"


def add_server_options(parser: Parser, env: Mapping[str, str] = os.environ) -> None:
    """`--server`, `--tenant`, `--token`, `--ca`, `--cert` and `--json`."""
    group = parser.add_argument_group(SERVER_GROUP)

    def add(name: str, metavar: str, help: str, default: str | None = None, check: Callable[[str], str] = str) -> None:
        value = env.get(f"EVERBELL_{name.upper()}") or default
        group.add_argument(f"--{name}", metavar=metavar, default=value, type=check, help=help)

    add("server", "URL", f"where the server is (or EVERBELL_SERVER; {DEFAULT_URL})", DEFAULT_URL, server)
    add("tenant", "NAME", "the tenant (or EVERBELL_TENANT; default)", "default", checked(check_tenant_name))
    add("token", "TOKEN", "the access key, if the server needs one (or EVERBELL_TOKEN, which other users cannot see)")
    add("ca", "FILE", "for https: the authorities to trust, instead of the system's (or EVERBELL_CA)")
    add("cert", "FILE", "for https: a certificate with its key, if the server needs one (or EVERBELL_CERT)")
    add_json_option(parser)


def add_json_option(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON: one document, or one a line for several")


def add_time_options(parser: Parser, *, required: bool, by: bool = False) -> None:
    """`--in` and `--at`, one of them; and `--by`, where there is a time already."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--in", dest="in_", metavar="DURATION", type=duration, help="from now, as in 250ms, 20m, 1h30m")
    group.add_argument("--at", metavar="TIME", type=instant, help="as in 2026-11-20T10:00:00Z")
    if by:
        group.add_argument("--by", metavar="DURATION", type=shift, help="later than it is due; earlier: --by -20m")


def open_client(args: argparse.Namespace) -> Client:
    """A client for the server that the options name."""
    return Client(args.server, args.tenant, args.token, ca=args.ca, certificate=args.cert)


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """A check that raises `InvalidInput`, for an option: a refused value is an error of usage."""

    def convert(text: str) -> T:
        try:
            return check(text)
        except InvalidInput as error:
            raise argparse.ArgumentTypeError(error.reason) from error

    return convert


@checked
def server(text: str) -> str:
    """The URL of a server, if it is one."""
    return ServerAddress(text, None).url


@checked
def duration(text: str) -> str:
    """A duration as it was written, if it is one."""
    text = _with_unit(text)
    parse_duration(text)
    return text


@checked
def shift(text: str) -> str:
    """A duration as it was written, perhaps with a minus, if it is one."""
    _with_unit(text.removeprefix("-"))
    shift_of(text)
    return text


@checked
def duration_s(text: str) -> float:
    return parse_duration(_with_unit(text)) / 1_000


def _with_unit(text: str) -> str:
    """In JSON a number means seconds. On a command line it needs a unit, unless it is 0."""
    if text == "0":
        return "0s"
    if text.isdecimal():
        raise InvalidInput(f"{text} has no unit; write {text}s, {text}m or {text}h")
    return text


@checked
def instant(text: str) -> str:
    """A time as it was written, if it is one."""
    parse_instant(text)
    return text


@checked
def positive(text: str) -> int:
    """A number of things, at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{text!r} is not a number of at least 1")
    return int(text)


@checked
def positive_number(text: str) -> float:
    """A number above 0, perhaps with a fraction."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII) or float(text) == 0:
        raise InvalidInput(f"{text!r} is not a number above 0")
    return float(text)
