"""The stage of the demo: a client, a receiver, and functions that print the steps with their times."""

from __future__ import annotations

import threading

from everbell.cli.demo_receiver import DemoReceiver
from everbell.cli.printing import print_json
from everbell.cli.terminal import Paint
from everbell.client.blocking import Client
from everbell.clock import Clock


class DemoStage:
    """Where a scene happens. Lines carry the time since the demo began."""

    def __init__(
        self, client: Client, receiver: DemoReceiver, clock: Clock, *, server: str, pause_s: float, as_json: bool
    ) -> None:
        self.client = client
        self.receiver = receiver
        self.server = server
        self.clock = clock
        self._began_at = clock.now()
        self._pause_s = pause_s
        self._as_json = as_json
        self._paint = Paint()
        self._never = threading.Event()

    def title(self, text: str) -> None:
        if not self._as_json:
            print(f"\n{self._paint(text, 'bold')}")

    def explain(self, text: str) -> None:
        """Explain the next step, and its use."""
        if not self._as_json:
            print(f"  {self._paint(text, 'dim')}", flush=True)
            self.wait(self._pause_s)

    def tell(self, text: str, colour: str = "cyan") -> None:
        elapsed_ms = self.clock.now() - self._began_at
        if self._as_json:
            print_json({"after_ms": elapsed_ms, "happened": text})
        else:
            print(f"  {elapsed_ms / 1_000:6.2f}s  {self._paint(text, colour)}", flush=True)

    def wait(self, seconds: float) -> None:
        self._never.wait(seconds)
