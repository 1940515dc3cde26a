from __future__ import annotations

import asyncio

import pytest

from everbell.bench.wire import call_all, request, split_message

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@pytest.mark.parametrize("end", range(len(ANSWER)))
def test_a_message_is_not_taken_before_it_is_complete(end: int) -> None:
    assert split_message(ANSWER[:end]) is None


def test_a_message_ends_where_its_length_says() -> None:
    start, end = split_message(ANSWER + b"HTTP/1.1 500") or (0, 0)

    assert ANSWER[start:end] == b"hello"


def test_a_message_without_a_length_has_no_body() -> None:
    answer = b"HTTP/1.1 204 No Content\r\n\r\n"

    assert split_message(answer) == (len(answer), len(answer))


def test_every_answer_brings_the_next_request_until_there_is_none() -> None:
    asked: list[bytes] = []
    answered: list[tuple[int, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b"":
            asked.append(await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0])))
            for piece in (ANSWER[:7], ANSWER[7:-2], ANSWER[-2:]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if len(asked) == 3:
                break
        await reader.read()
        writer.close()

    def following(status: int, body: bytes) -> bytes | None:
        answered.append((status, body))
        return request("/next", b"%d" % len(answered)) if len(answered) < 3 else None

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await call_all("127.0.0.1", [port], [request("/first", b"0")], following)

    asyncio.run(run())

    assert asked == [b"0", b"1", b"2"]
    assert answered == [(200, b"hello")] * 3
