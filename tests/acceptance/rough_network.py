"""A private network with bad weather: it loses, delays and repeats packets, and swallows large ones.

Not every kernel can do that, so each namespace has a TUN device instead of a cable, and this process carries the
packets from one device to the other.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import random
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

from tests.acceptance.network import Network, enter, file_of, run_ip

_SET_DEVICE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET_BYTES_MAX = 65_536


@dataclass(frozen=True)
class Weather:
    """The state of all links, or of the links from one address to another."""

    loss: float = 0.0
    delay_s: float = 0.0
    """Added to each packet, and up to as much again: so packets overtake each other."""
    twice: float = 0.0
    bytes_max: int = _PACKET_BYTES_MAX
    """Larger packets vanish, without a message to their sender."""


FAIR = Weather()


class RoughNetwork(Network):
    """A network whose links the test makes bad, all of them or some."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.weather = FAIR
        """For the links that have no weather of their own."""
        self.lost = self.repeated = 0
        self._links: dict[tuple[str, str], Weather] = {}
        self._devices: dict[int, int] = {}
        self._dice = random.Random(15)

    def spoil(self, source: str, destination: str, weather: Weather) -> None:
        """Give the link from one address to another a weather of its own."""
        self._links[source, destination] = weather

    def cut(self, source: str, destination: str) -> None:
        self.spoil(source, destination, Weather(loss=1.0))

    def heal(self, source: str, destination: str) -> None:
        self._links.pop((source, destination), None)

    def _lay(self, name: str, number: int) -> None:
        """Give a namespace a device whose packets this process carries."""
        place = self._places[name]
        opened: list[int] = []
        # A device belongs to the namespace of the thread that makes it.
        thread = threading.Thread(target=lambda: opened.append(_open_device(place)))
        thread.start()
        thread.join(30)
        (device,) = opened
        self._devices[number] = device
        run_ip("-n", place, "addr", "add", f"10.77.{number}.2/24", "dev", "cable")
        run_ip("-n", place, "link", "set", "cable", "up")
        run_ip("-n", place, "route", "add", "default", "dev", "cable")
        self._outside.call_soon_threadsafe(self._outside.add_reader, device, self._carry, device)
        self._undo.callback(os.close, device)
        self._undo.callback(self._outside.call_soon_threadsafe, self._outside.remove_reader, device)

    def _carry(self, device: int) -> None:
        packet = os.read(device, _PACKET_BYTES_MAX)
        if packet[0] >> 4 != 4:
            return
        source, destination = (str(ipaddress.IPv4Address(packet[at : at + 4])) for at in (12, 16))
        other = self._devices.get(packet[18])
        weather = self._links.get((source, destination), self.weather)
        if other is None or len(packet) > weather.bytes_max or self._dice.random() < weather.loss:
            self.lost += 1
            return
        is_twice = self._dice.random() < weather.twice
        self.repeated += is_twice
        for _ in range(1 + is_twice):
            delay_s = weather.delay_s * (1 + self._dice.random())
            self._outside.call_later(delay_s, _write, other, packet)


def _write(device: int, packet: bytes) -> None:
    with suppress(OSError):  # The device is full or gone: the packet is lost, as on any network.
        os.write(device, packet)


def _open_device(place: str) -> int:
    namespace = os.open(file_of(place), os.O_RDONLY)
    try:
        enter(namespace)
    finally:
        os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH", b"cable", _TUN_WITHOUT_HEADER))
    return device
