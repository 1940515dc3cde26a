"""The client for programs that block: `Client`.

A thin shell: the modules of calls know the requests and how to read the answers, `call` knows which to retry. Safe to
share between threads, and across a fork.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

from everbell.client.all_calls import AllCalls
from everbell.client.call import Call, Lost, Reply, conclude, in_doubt
from everbell.client.connections import Connections
from everbell.client.operation import Blocking

T = TypeVar("T")


class Client(AllCalls, Blocking):
    """A client of one tenant. Close it when done, or use it as a context manager."""

    def _prepare(self) -> None:
        self._connections = Connections(self._address, self._tls)

    def run(self, call: Call[T]) -> T:
        """Make a call, retry it where that is safe, and return its result or raise its error."""
        attempt = 1
        while True:
            outcome = self._exchange(call)
            pause_s = self._persistence.pause_s(call, attempt, outcome)
            if pause_s is None or self._connections.wait_closed(pause_s):
                doubt = in_doubt(call, attempt, outcome)
                return conclude(call, outcome, self._address.url) if doubt is None else self.run(doubt)
            attempt += 1

    def close(self) -> None:
        """Close the connections, and give up on calls that wait for a retry."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exchange(self, call: Call[T]) -> Reply | Lost:
        return self._connections.exchange(call, self._timeout_s + call.wait_s)
