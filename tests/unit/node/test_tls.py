"""TLS for the API: with both clients and on both loops, with certificates of clients, and with renewed ones."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from everbell.client.awaiting import AsyncClient
from everbell.client.blocking import Client
from everbell.errors import InvalidInput, Unreachable
from everbell.http.accept_balancer import ConnectionCounts, OwnCount, open_counts
from everbell.http.server import HttpRequest, HttpResponse, HttpServer, ServerLimits
from everbell.node.settings import TlsSettings
from everbell.node.tenant_tables import SettingsError
from everbell.node.tls import renew_certificate, server_tls

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main)

    return run_on_loop


class Certificate:
    """A certificate that vouches for itself, made for a test."""

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        self.both = str(folder / f"{name}-both.pem")
        options = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
        options += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(
            ["openssl", *options, "-keyout", self.key, "-out", self.certificate], check=True, capture_output=True
        )
        Path(self.both).write_text(Path(self.certificate).read_text() + Path(self.key).read_text())

    @property
    def settings(self) -> TlsSettings:
        return TlsSettings(self.certificate, self.key)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate(tmp_path_factory.mktemp("tls"), "other")


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, msgspec.json.encode({"state": "ready", "size": len(request.body)}))


async def serving(tls: ssl.SSLContext, test: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    server = HttpServer(health, limits=ServerLimits(body_bytes_max=1_000))
    await server.start(("127.0.0.1", 0), tls)
    try:
        await test(f"https://127.0.0.1:{server.port}")
    finally:
        await server.stop(1)


def blocking(url: str, **options: Any) -> Any:
    with Client(url, attempts_max=1, **options) as client:
        return client.health()


def context_of(settings: TlsSettings) -> ssl.SSLContext:
    context = server_tls(settings)
    assert context is not None
    return context


def test_both_clients_speak_it(run: Run, ours: Certificate) -> None:
    async def scene(url: str) -> None:
        assert (await asyncio.to_thread(blocking, url, ca=ours.certificate)).state == "ready"
        async with AsyncClient(url, ca=ours.certificate) as client:
            for _ in range(3):
                assert (await client.health()).state == "ready"

    run(serving(context_of(ours.settings), scene))


def test_servers_that_share_a_socket_speak_tls_and_count_only_tls_connections(run: Run, ours: Certificate) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        board = ConnectionCounts(open_counts(2), 2)
        board.write(1, 0)
        server = HttpServer(health, limits=ServerLimits())
        server.share(listener, OwnCount(board, 0), context_of(ours.settings))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
        await reader.read()  # Until it is hung up on.
        writer.close()
        async with AsyncClient(f"https://127.0.0.1:{port}", ca=ours.certificate) as client:
            assert (await client.health()).state == "ready"
            assert not board.is_fewest(0)
        await server.stop(1)
        board.close()
        assert server._service is not None
        assert server._service.quiet.is_set()

    run(main())


def test_neither_trusts_a_stranger(run: Run, ours: Certificate, other: Certificate) -> None:
    async def scene(url: str) -> None:
        several: tuple[dict[str, Any], ...] = ({}, {"ca": other.certificate})
        for options in several:
            with pytest.raises(Unreachable, match="certificate"):
                await asyncio.to_thread(blocking, url, **options)
            async with AsyncClient(url, attempts_max=1, **options) as client:
                with pytest.raises(Unreachable, match="certificate"):
                    await client.health()

    run(serving(context_of(ours.settings), scene))


def test_clients_can_be_made_to_show_a_certificate(run: Run, ours: Certificate, other: Certificate) -> None:
    settings = TlsSettings(ours.certificate, ours.key, client_authority=other.certificate)

    async def scene(url: str) -> None:
        options: dict[str, Any] = {"ca": ours.certificate, "certificate": other.both}
        assert (await asyncio.to_thread(blocking, url, **options)).state == "ready"
        async with AsyncClient(url, **options) as client:
            assert (await client.health()).state == "ready"
        for wrong in ({}, {"certificate": ours.both}):
            with pytest.raises(Unreachable):
                await asyncio.to_thread(blocking, url, ca=ours.certificate, **wrong)

    run(serving(context_of(settings), scene))


def test_a_refusal_arrives_and_pipelined_requests_are_answered(run: Run, ours: Certificate) -> None:
    async def scene(url: str) -> None:
        trust = ssl.create_default_context(cafile=ours.certificate)
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 20)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n" + bytes(5_000))
        answers = await reader.read()
        assert answers.count(b"HTTP/1.1 200") == 20
        assert answers.count(b"HTTP/1.1 413") == 1
        writer.close()

    run(serving(context_of(ours.settings), scene))


def test_a_client_that_speaks_no_tls_is_cut_off(run: Run, ours: Certificate) -> None:
    async def scene(url: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"ready" not in await reader.read()
        writer.close()

    run(serving(context_of(ours.settings), scene))


def test_a_renewed_certificate_counts_for_new_connections(
    run: Run, ours: Certificate, other: Certificate, tmp_path: Path
) -> None:
    settings = TlsSettings(str(tmp_path / "c"), str(tmp_path / "k"))
    shutil.copy(ours.certificate, settings.certificate)
    shutil.copy(ours.key, settings.key)
    context = context_of(settings)

    async def scene(url: str) -> None:
        async with AsyncClient(url, ca=ours.certificate) as before:
            await before.health()
            shutil.copy(other.certificate, settings.certificate)
            renew_certificate(context, settings)  # The key is not there yet: the old ones stay.
            await asyncio.to_thread(blocking, url, ca=ours.certificate)
            shutil.copy(other.key, settings.key)
            renew_certificate(context, settings)
            await asyncio.to_thread(blocking, url, ca=other.certificate)
            await before.health()  # On the connection that it has.

    run(serving(context, scene))


def test_old_versions_are_not_spoken(ours: Certificate) -> None:
    assert context_of(ours.settings).minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "settings",
    [
        TlsSettings("{c}", ""),
        TlsSettings("", "{k}"),
        TlsSettings("", "", "{c}"),
        TlsSettings("/missing", "{k}"),
        TlsSettings("{k}", "{k}"),
        TlsSettings("{c}", "{k}", "/missing"),
        TlsSettings("{c}", "{k}", "{k}"),
    ],
)
def test_files_that_are_no_good_are_named(settings: TlsSettings, ours: Certificate) -> None:
    filled = [text.format(c=ours.certificate, k=ours.key) for text in msgspec.structs.astuple(settings)]
    with pytest.raises(SettingsError, match="--tls-"):
        server_tls(TlsSettings(*filled))


def test_without_files_there_is_no_tls() -> None:
    assert server_tls(TlsSettings()) is None


@pytest.mark.parametrize("options", [{"ca": "/missing"}, {"certificate": "/missing"}])
def test_a_client_names_files_that_are_no_good(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="/missing"):
        Client("https://127.0.0.1:1", **options)
