"""Attacks on a server, each in a process of its own: `python -m everbell.bench.attacks`.

The first line of standard input is the plan. The process says when the attack has begun, repeats it until its time is
over, says how often it was made, and keeps its connections open until it is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from time import perf_counter

import msgspec

from everbell.bench.dialogue import lines_told, plan_told, say
from everbell.bench.plans import AttackPlan

TENANT = "greedy"
_EVENTS = f"/v1/tenants/{TENANT}/events"
_LARGEST = 16 * 1024 * 1024 - 1
_ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
_CRONS = ("* * * * *", "*/7 3 * * MON-FRI", "0 0 29 2 *", "30 2 L * *", "59 23 31 12 SUN", "* * * * * *")


class Attacker:
    """Connections to the attacked server. They stay open."""

    def __init__(self, plan: AttackPlan) -> None:
        self.plan = plan
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.plan.port)
        self._open.append(writer)
        return reader, writer

    def request(self, method: str, path: str, body: bytes, *, key: bool = True, length: int | None = None) -> bytes:
        access = f"authorization: Bearer {self.plan.token}\r\n" if key else ""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{access}content-type: application/json\r\n"
        return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body

    async def ask(self, method: str, path: str, content: object = b"") -> None:
        """Send one request, and read its answer."""
        body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.plan.port)
        try:
            writer.write(self.request(method, path, body))
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
            await reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The server refuses a body by closing the connection.
        finally:
            writer.close()


async def recurrence(attacker: Attacker) -> None:
    """Events that repeat since 1970, previews and forecasts."""
    for number, cron in enumerate(_CRONS):
        for zone in _ZONES:
            for misfire in ("skip", "latest"):
                repeat = {"cron": cron, "tz": zone, "count": 1_000_000_000, "misfire": misfire}
                event = {"at": "1970-01-01T00:00:00Z", "to": "queue:nobody", "repeat": repeat}
                await attacker.ask("POST", _EVENTS, event)
            preview = {"at": "1970-01-01T00:00:00Z", "repeat": {"cron": cron, "tz": zone}, "count": 1_000}
            await attacker.ask("POST", "/v1/preview", preview)
        await attacker.ask("GET", f"/v1/tenants/{TENANT}/forecast?by={'minute' if number % 2 else 'hour'}")


async def bodies(attacker: Attacker) -> None:
    """Invalid batches, and bodies of the largest size."""
    large = b'{"in":"1h","to":"queue:a","payload":[' + b"1," * 100_000 + b"1]}"
    for body in (
        b'{"a":1}\n' * 20_000,
        b"[" + b",".join([b'{"a":1}'] * 150_000) + b"]",
        b"[" * _LARGEST,
        b"\n" * _LARGEST,
        b"[" + b"0," * (_LARGEST // 2 - 1) + b"0]",
        b"[" + b",".join([large] * (_LARGEST // len(large) - 1)) + b"]",
    ):
        await attacker.ask("POST", f"{_EVENTS}/batch", body)


async def strangers(attacker: Attacker) -> None:
    """Eight clients without a key that send the largest body but for its last byte."""

    async def send() -> None:
        _, writer = await attacker.connect()
        try:
            writer.write(attacker.request("POST", f"{_EVENTS}/batch", b"x" * _LARGEST, key=False, length=_LARGEST + 1))
            await writer.drain()
        except ConnectionError:
            pass

    await asyncio.gather(*(send() for _ in range(8)))


async def unread(attacker: Attacker) -> None:
    """Clients that ask for large pages, and do not read them."""
    lines = b"\n".join(
        b'{"in":"%dh","to":"queue:a","payload":"%b"}' % (number + 1, b"x" * 4_000) for number in range(1_000)
    )
    await attacker.ask("POST", f"{_EVENTS}/batch", lines)
    for _ in range(150):
        reader, writer = await attacker.connect()
        reader._transport.pause_reading()  # type: ignore[attr-defined] # No public call stops reading.
        writer.write(attacker.request("GET", f"{_EVENTS}?limit=1000", b""))


async def connections(attacker: Attacker) -> None:
    """Many connections that send nothing."""
    for _ in range(1_500):
        try:
            await attacker.connect()
        except OSError:
            return


async def names(attacker: Attacker) -> None:
    """Events for 200 names that do not resolve."""
    numbers = range(200)
    lines = [{"in": 0, "to": f"https://h{number}.invalid/", "retry": {"backoff": "100ms"}} for number in numbers]
    await attacker.ask("POST", f"{_EVENTS}/batch", lines)


async def hosts(attacker: Attacker) -> None:
    """Events for many hosts, none of which listens."""
    turn = next(_turns) % 200
    lines = [{"in": 0, "to": f"http://127.{turn + 1}.{n // 250}.{n % 250 + 1}:9/"} for n in range(5_000)]
    await attacker.ask("POST", f"{_EVENTS}/batch", lines)


async def occurrences(attacker: Attacker) -> None:
    """Occurrences that overlap at a receiver that hangs, and dry runs."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    to = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
    repeat = {"every": "10ms", "overlap": "allow"}
    name = f"again-{next(_turns)}"
    await attacker.ask("PUT", f"{_EVENTS}/{name}", {"in": 0, "to": to, "repeat": repeat})
    await asyncio.gather(*(attacker.ask("POST", f"{_EVENTS}/{name}/deliver?dry_run=true") for _ in range(100)))


_turns = count()

ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "recurrence": recurrence,
    "bodies": bodies,
    "strangers": strangers,
    "unread": unread,
    "connections": connections,
    "names": names,
    "hosts": hosts,
    "occurrences": occurrences,
}


async def main() -> None:
    plan = plan_told(AttackPlan)
    attacker = Attacker(plan)
    say({"begun": True})
    until_s = perf_counter() + plan.seconds
    times = 0
    while perf_counter() < until_s:
        attack = asyncio.ensure_future(ATTACKS[plan.name](attacker))
        await asyncio.wait([attack], timeout=until_s - perf_counter())
        times += 1
        if not attack.done():
            attack.cancel()
            break
        attack.result()
        if plan.name in ("unread", "connections"):
            break  # Once is enough: its connections stay.
    say({"times": times})
    async for _ in lines_told():
        pass


if __name__ == "__main__":
    asyncio.run(main())
