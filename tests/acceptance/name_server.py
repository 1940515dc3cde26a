"""A name server on an address of the loopback network: it answers for names in `good.test`, and for no others."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType

_A = 1


class NameServer:
    """Runs in a thread. `asked` are the names that got no answer."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.asked: set[str] = set()

    def __enter__(self) -> NameServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, sender = self._socket.recvfrom(2_048)
            except OSError:
                return
            name, end = _name(query)
            if not name.endswith("good.test"):
                self.asked.add(name)
                continue
            (kind,) = struct.unpack_from(">H", query, end)
            record = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04" + socket.inet_aton("127.0.0.1")
            answers = [record] if kind == _A else []
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(answers), 0, 0)
            self._socket.sendto(head + query[12 : end + 4] + b"".join(answers), sender)


def _name(query: bytes) -> tuple[str, int]:
    """The name in a query, and the place after it."""
    labels, place = [], 12
    while query[place]:
        labels.append(query[place + 1 : place + 1 + query[place]].decode())
        place += 1 + query[place]
    return ".".join(labels), place + 1
