"""Notices an event loop that is blocked for more than a second, and logs what it was doing.

A timer on the loop beats five times a second, and a thread looks at it as often. When the thread sees no beat in six
looks, it logs the stack of the loop's thread. The next beat then logs how long the loop was blocked, and counts it. A
process that was stopped, or code that kept the thread from running (it held the interpreter's lock), shows only in the
next beat, so those blocks are counted without a stack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

from everbell.clock import Clock

_log = logging.getLogger("everbell.server")

BLOCKED_MS = 1_000
_BEAT_S = 0.2
# Between two of six looks there are at least five whole intervals: a second.
_LOOKS = 6
_FRAMES_MAX = 40


class LoopWatch:
    """Watches the loop on which it was started, until it is stopped."""

    def __init__(self, clock: Clock) -> None:
        self.blocks = 0
        """How often the loop was blocked for more than a second."""
        self.blocked_ms = 0
        """The sum of those times."""
        self._clock = clock
        self._beats = 0
        self._beat_ms = 0
        self._has_stack = False
        self._timer: asyncio.TimerHandle | None = None
        self._over = threading.Event()
        self._loop_thread = 0

    def start(self) -> None:
        """Watch the running loop."""
        self._loop_thread = threading.get_ident()
        self._beat_ms = self._clock.elapsed_ms()
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)
        threading.Thread(target=self._look, name="everbell-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        now_ms = self._clock.elapsed_ms()
        late_ms = now_ms - self._beat_ms - int(_BEAT_S * 1_000)
        has_stack, self._has_stack = self._has_stack, False
        self._beat_ms = now_ms
        self._beats += 1
        if late_ms >= BLOCKED_MS:
            self.blocks += 1
            self.blocked_ms += late_ms
            why = "" if has_stack else "; there is no stack: the process was stopped, or one call let no thread run"
            _log.warning("the event loop was blocked for %.1f s%s", late_ms / 1_000, why)
        self._timer = asyncio.get_running_loop().call_later(_BEAT_S, self._beat)

    def _look(self) -> None:
        """Run in a thread: look for beats."""
        seen, missed = -1, 0
        while not self._over.wait(_BEAT_S):
            if self._beats != seen:
                seen, missed = self._beats, 0
                continue
            missed += 1
            if missed == _LOOKS:
                self._log_stack()

    def _log_stack(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None:
            self._has_stack = True
            stack = "".join(traceback.format_stack(frame, _FRAMES_MAX)).rstrip()
            _log.error("the event loop has been blocked for more than a second, by:\n%s", stack)
