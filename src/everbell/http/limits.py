"""The limits of an HTTP server: every buffer and every wait has one."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one HTTP server. Beyond a limit, the client gets the status in the comment."""

    body_bytes_max: int = 16 * 1024 * 1024  # 413
    bodies_bytes_max: int = 128 * 1024 * 1024  # 503; the bodies of all requests in flight, over all connections
    unsent_bytes_max: int = 64 * 1024 * 1024  # no status: the connection is closed whose client has read least lately
    header_bytes_max: int = 16 * 1024  # 431; all headers of a request together
    request_line_bytes_max: int = 8 * 1024  # 414; the request target
    read_timeout_s: float = 30.0  # 408; from the first byte of a request to its last, and to take an answer
    idle_timeout_s: float = 75.0  # no status: an idle connection is closed
    connections_max: int = 10_000  # 503
    turned_away_max: int = 256  # no status: connections over the limit that are still being answered 503
    pipelined_max: int = 64  # no status: the connection is not read until answers are sent
    ready_bytes_max: int = 1024 * 1024  # the same; complete answers that wait for an earlier one

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be more than 0")
        if self.bodies_bytes_max < 2 * self.body_bytes_max:
            # A connection may hold as much as is still free.
            raise ValueError("bodies_bytes_max must be at least twice body_bytes_max")
