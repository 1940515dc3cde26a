"""One setting, and the functions that read its text.

They take the text of a flag, a variable or the file, and raise `InvalidInput` with a message about valid values.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_network

from msgspec import Struct

from everbell.core.policy import parse_size
from everbell.core.time import parse_duration
from everbell.errors import InvalidInput
from everbell.http.address_guard import Network


class Setting(Struct, frozen=True):
    """One setting: `--name`, `EVERBELL_NAME`, `name = …` in the file."""

    name: str
    default: str
    read: Callable[[str], object]
    help: str
    metavar: str | None = None
    """None: the setting is a switch."""
    separator: str = ","
    """Between several values. A blank: the flag may be given several times."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "EVERBELL_" + self.name.upper()


def read_listen(text: str) -> tuple[str, int]:
    """An address, `HOST:PORT`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidInput(f"{text!r} is not an address; write HOST:PORT, such as 127.0.0.1:8420")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_advertised(text: str) -> str:
    """An address that other nodes can reach, `HOST:PORT`, or nothing."""
    if not text:
        return text
    host, port = text.rpartition(":")[0], read_listen(text)[1]
    try:
        is_host = bool(host.encode("idna"))
    except UnicodeError:
        is_host = False
    if not is_host or not port:
        raise InvalidInput(f"{text!r} is no address that others can reach; write HOST:PORT, such as n1.example:7000")
    return text


def read_networks(text: str) -> tuple[Network, ...]:
    """Networks, with commas between them."""
    try:
        return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError as wrong:
        raise InvalidInput(f"{wrong}; write networks such as 10.0.0.0/8,192.168.7.0/24") from None


REPLICA_BYTES = 256 * 1024 * 1024
"""The memory for events of replicas where there is no store."""


def read_size(text: str) -> int:
    """A number of bytes."""
    return parse_size(text, "size")


def read_duration(text: str) -> int:
    """A number of milliseconds."""
    return parse_duration(text, "duration")


def number_reader(low: int, high: int) -> Callable[[str], int]:
    """Reads whole numbers within bounds."""

    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise InvalidInput(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


def read_switch(text: str) -> bool:
    """Yes or no."""
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise InvalidInput(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "1", "yes")


def read_level(text: str) -> str:
    """The level of the log."""
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise InvalidInput(f"{text!r} is not one of debug, info, warning, error")
    return text.upper()


def one_of_reader(*choices: str) -> Callable[[str], str]:
    """Reads one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise InvalidInput(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return read


def read_lease(text: str) -> int:
    """The duration of a lease."""
    lease_ms = parse_duration(text, "lease")
    if not 500 <= lease_ms <= 60_000:
        raise InvalidInput(f"{text!r} is not a time from 500ms to 60s")
    return lease_ms


def joined_text(value: object, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
