"""Session timers of phone calls, in the memory of three nodes: a dead node ends no session early and forgets none.

A call that is set up gets a timer. Every refresh of the call postpones it; the end of the call cancels it. If neither
comes, the phone has vanished, and the timer rings, so that the call can be billed and cleaned up. Such timers are many
and short, so they need no database: each is in the memory of three nodes, and any node takes a refresh.

The nodes need a log that all of them reach, but only to join and to leave:

    python examples/call_sessions.py postgresql://user@host/database
    python examples/call_sessions.py zookeeper://zk1,zk2,zk3/everbell
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import everbell

NODES = ("n1", "n2", "n3")
SESSION = "3s"
CALLS = 30


class Billing(BaseHTTPRequestHandler):
    """The receiver: it is told of calls whose phones no longer refresh them."""

    ended: set[str] = set()  # noqa: RUF012 -- one receiver in this program
    changed = threading.Condition()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        with self.changed:
            self.ended.add(body.strip('"'))
            self.changed.notify_all()
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def start_node(name: str, log: str, folder: Path) -> subprocess.Popen[bytes]:
    ready = folder / name
    command = [sys.executable, "-m", "everbell", "serve", "--store", "replicas:", "--log", log, "--node", name]
    command += ["--listen", "127.0.0.1:0", "--ready-file", str(ready), "--lease", "1s"]
    with (folder / f"{name}.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def url_of(name: str, folder: Path) -> str:
    while not (folder / name).exists() or not (folder / name).read_text().endswith("\n"):
        time.sleep(0.05)
    return (folder / name).read_text().strip()


def wait_for_members(client: everbell.Client) -> None:
    while len([member for member in client.cluster().members if member.state == "member"]) < len(NODES):
        time.sleep(0.05)


def run(log: str, folder: Path, nodes: dict[str, subprocess.Popen[bytes]]) -> None:
    billing = ThreadingHTTPServer(("127.0.0.1", 0), Billing)
    threading.Thread(target=billing.serve_forever, daemon=True).start()
    for name in NODES:
        nodes[name] = start_node(name, log, folder)
    clients = [everbell.Client(url_of(name, folder), tenant="calls") for name in NODES]
    for client in clients:
        wait_for_members(client)
    to = f"http://127.0.0.1:{billing.server_port}/ended"
    replicas = {"count": 3, "skew": "1s", "ack": "majority"}
    calls = [f"call-{number}" for number in range(CALLS)]
    for number, call in enumerate(calls):
        clients[number % 3].schedule(call, to=to, in_=SESSION, id=call, replicas=replicas)
    holders = (clients[0].get("call-0").replicas or {})["held_by"]
    print(f"{CALLS} calls, each held by {', '.join(sorted(holders))}")

    nodes["n1"].kill()
    print("n1 was killed")
    for call in calls[:10]:
        clients[1].cancel(call)
    for call in calls[10:20]:
        clients[2].reschedule(call, in_="10m")
    print("10 calls hung up, 10 were refreshed, 10 phones vanished")
    with Billing.changed:
        is_done = Billing.changed.wait_for(lambda: len(Billing.ended) >= 10, timeout=60)
    vanished = "all vanished ones" if Billing.ended == set(calls[20:]) else sorted(Billing.ended)
    print(f"ended: {vanished if is_done else 'too few'}")
    print(f"still open: {clients[1].get('call-10').status}, hung up: {clients[2].get('call-0').status}")
    billing.shutdown()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("give the URL of a log: postgresql://… or zookeeper://…")
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(sys.argv[1], Path(folder), nodes)
        finally:
            for node in nodes.values():
                node.kill()
                node.wait()


if __name__ == "__main__":
    main()
