"""The phases of a server connection."""

from __future__ import annotations

from enum import IntEnum


class ConnectionPhase(IntEnum):
    """The life of a connection. A connection skips phases, and never goes back to an earlier one."""

    LISTENING = 0  # It reads requests and answers them.
    FINISHING = 1  # It discards input, and answers the requests that it has begun.
    ENDING = 2  # The last answer is in `out`; the connection hangs up as soon as that is written.
    HUNG_UP = 3  # It has closed its side, and waits for the client to close the other.
    LOST = 4  # The transport is gone.


# Python 3.11 looks up a member on the class of an enum slowly, and a connection compares its phase ten times a request.
LISTENING, FINISHING, ENDING, HUNG_UP, LOST = ConnectionPhase
