"""Node-to-node traffic: which callers and requests are allowed, and the error when the other node is gone."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

import msgspec
import pytest

from everbell.cluster.handshake import Hello, Proof, is_proof, key_of, sign
from everbell.cluster.peers import GREETING_MAX, CalledEnd, Callers, TcpPeers
from everbell.cluster.tls import peer_tls, renew_peer_tls
from everbell.core.cluster import Member
from everbell.core.request import Request
from everbell.engine.request_routes import ByToken
from everbell.engine.requests import Acknowledge, ExtendLeases, MakeBackup
from everbell.entropy import SeededEntropy
from everbell.errors import ClusterError, NotOwner, OutcomeUnknown, Overloaded

KEY = key_of("the cluster", "secret")


async def echo(request: Request[Any], /) -> Any:
    """Answers with the tokens; leases are extended for ever."""
    assert isinstance(request, ByToken)
    if isinstance(request, ExtendLeases):
        await asyncio.Event().wait()
    return request.tokens_asked()


def met(
    act: Callable[[TcpPeers, Member], Awaitable[None]],
    *,
    key: bytes = KEY,
    caller_tls: ssl.SSLContext | None = None,
    called_tls: ssl.SSLContext | None = None,
) -> None:
    """Two nodes that can reach each other; the caller has `key`."""

    async def main() -> None:
        callers = Callers()
        server = await asyncio.get_running_loop().create_server(
            lambda: CalledEnd(echo, lambda: KEY, SeededEntropy(1), callers), "127.0.0.1", 0, ssl=called_tls
        )
        peers = TcpPeers(lambda: key, SeededEntropy(2), caller_tls)
        port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(30):
                await act(peers, Member("n2", "n2/x", (f"127.0.0.1:{port}",)))
        finally:
            peers.close()
            server.close()

    asyncio.run(main())


def test_nodes_of_one_cluster_talk() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        peer = await peers.reach(member)
        assert await peer.ask(Acknowledge("shop", "q", ["a", "b"])) == ["a", "b"]
        assert await peers.reach(member) is peer

    met(act)


@pytest.mark.parametrize("key", [key_of("another cluster", "secret"), key_of("the cluster", "another secret")])
def test_strangers_and_nodes_of_other_clusters_are_refused(key: bytes) -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        with pytest.raises(NotOwner):
            await peers.reach(member)

    met(act, key=key)


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 4) + msgspec.msgpack.encode(["x" * 2])[:4],
    ],
)
def test_a_caller_that_does_not_greet_as_a_node_is_cut_off(words: bytes) -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        host, _, port = member.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(words)
        with_nothing = await _rest(reader)
        assert with_nothing == b""
        writer.close()

    met(act)


def test_callers_that_do_not_greet_keep_no_node_out() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        host, _, port = member.addresses[0].rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(GREETING_MAX + 10)]
        for reader, writer in silent[:10]:
            assert await _rest(reader) == b"", "the oldest make room"
            writer.close()
        peer = await peers.reach(member)
        assert await peer.ask(Acknowledge("shop", "q", ["a"])) == ["a"]
        assert await _rest(silent[10][0]) == b"", "the node took the place of the next"
        for _, writer in silent[10:]:
            writer.close()

    met(act)


def test_connections_of_nodes_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.cluster.peers.NODES_MAX", 1)

    async def act(peers: TcpPeers, member: Member) -> None:
        first = await peers.reach(member)
        assert await first.ask(Acknowledge("shop", "q", ["a"])) == ["a"]
        others = TcpPeers(lambda: KEY, SeededEntropy(3), None)
        with pytest.raises(NotOwner):
            await others.reach(member)
        others.close()
        assert await first.ask(Acknowledge("shop", "q", ["b"])) == ["b"]

    met(act)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_a_call_before_the_proof_is_not_looked_at() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        host, _, port = member.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for message in (Hello(b"n" * 18), Proof(b"forged")):
            frame = msgspec.msgpack.encode(message)
            writer.write(struct.pack(">I", len(frame)) + frame)
        ask = msgspec.msgpack.encode([1, "get", ["shop", "x"]])
        writer.write(struct.pack(">I", len(ask)) + ask)
        answered = await _rest(reader)
        assert len(answered) < 200, "the greeting of the other side, and no more"
        writer.close()

    met(act)


def test_only_requests_for_peers_can_be_asked() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        peer = await peers.reach(member)
        with pytest.raises(Overloaded, match="not for other nodes"):
            await peer.ask(MakeBackup())

    met(act)


def test_a_node_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gone = Member("n3", "n3/x", (f"127.0.0.1:{probe.getsockname()[1]}",))

    async def act(peers: TcpPeers, member: Member) -> None:
        with pytest.raises(NotOwner, match="n3 cannot be reached"):
            await peers.reach(gone)

    met(act)


@pytest.mark.parametrize("address", ["n3.example", "n3.example:http", "n3..example:80", ""])
def test_a_member_with_an_address_that_is_none_cannot_be_reached(address: str) -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        with pytest.raises(NotOwner, match="n3 cannot be reached"):
            await peers.reach(Member("n3", "n3/x", (address,)))

    met(act)


def test_a_member_without_an_address_cannot_be_reached() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        for _ in range(2):
            with pytest.raises(NotOwner, match="n1 is not back yet; nothing of this request was done"):
                await peers.reach(Member("n1", "n1/before"))

    met(act)


def test_a_node_that_is_gone_leaves_no_caller_waiting() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        peer = await peers.reach(member)
        asked = asyncio.ensure_future(peer.ask(ExtendLeases("shop", "q", ["a"], 1)))
        await asyncio.sleep(0)
        peers.keep_only({"n9/y"})
        with pytest.raises(OutcomeUnknown):
            await asked
        assert await (await peers.reach(member)).ask(Acknowledge("shop", "q", ["c"])) == ["c"]

    met(act)


def test_a_node_that_goes_while_it_is_being_reached_cancels_no_caller() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            # It takes connections, as the kernel does for a process that is stopped, and says nothing.
            silent = Member("n3", "n3/x", (f"127.0.0.1:{frozen.getsockname()[1]}",))
            asked = asyncio.ensure_future(peers.reach(silent))
            await asyncio.sleep(0.05)
            peers.keep_only({"n2/x"})
            with pytest.raises(NotOwner, match="gone"):
                await asked

    met(act)


def test_a_node_that_accepts_and_says_nothing_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.cluster.peers._CONNECT_S", 0.01)

    async def act(peers: TcpPeers, member: Member) -> None:
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            silent = Member("n3", "n3/x", (f"127.0.0.1:{frozen.getsockname()[1]}",))
            for _ in range(3):
                with pytest.raises(NotOwner, match="cannot be reached"):
                    await peers.reach(silent)
            for _ in range(3):
                connection, _ = frozen.accept()
                with connection:
                    connection.settimeout(10)
                    while await asyncio.to_thread(_said, connection):
                        pass  # Its greeting, and then the end of it.

    met(act)


def _said(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_024)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("words", [b"", struct.pack(">I", 200) + b"and so on"])
def test_a_silent_caller_is_cut_off(words: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbell.cluster.peers.GREETING_S", 0.01)

    async def act(peers: TcpPeers, member: Member) -> None:
        host, _, port = member.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(words)
        assert await _rest(reader) == b""
        writer.close()

    met(act)


def test_garbage_in_the_place_of_a_greeting_is_no_node() -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
            await _rest(reader)
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        other = Member("n3", "n3/x", (f"127.0.0.1:{server.sockets[0].getsockname()[1]}",))
        with pytest.raises(NotOwner, match="not of this cluster"):
            await peers.reach(other)
        server.close()

    met(act)


def test_a_proof_is_of_one_side_one_meeting_and_one_key() -> None:
    signature = sign(KEY, "caller", b"1", b"2")
    assert is_proof(KEY, "caller", b"1", b"2", signature)
    assert not is_proof(KEY, "called", b"1", b"2", signature)
    assert not is_proof(KEY, "caller", b"2", b"1", signature)
    assert not is_proof(key_of("the cluster", ""), "caller", b"1", b"2", signature)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and a node's certificate signed by each."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for authority in ("ours", "theirs"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem")  # fmt: skip
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=node",
                "-keyout", f"node-{authority}.key", "-out", "node.csr")  # fmt: skip
        openssl("x509", "-req", "-in", "node.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-days", "2", "-out", f"node-{authority}.pem")  # fmt: skip
    return folder


def _tls(folder: Path, signed_by: str, authority: str) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    return peer_tls(
        str(folder / f"node-{signed_by}.pem"), str(folder / f"node-{signed_by}.key"), str(folder / f"{authority}.pem")
    )


def test_nodes_talk_over_tls_where_both_have_certificates(certificates: Path) -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        peer = await peers.reach(member)
        assert await peer.ask(Acknowledge("shop", "q", ["a"])) == ["a"]

    called, caller = _tls(certificates, "ours", "ours")
    met(act, called_tls=called, caller_tls=caller)


@pytest.mark.parametrize(("signed_by", "authority"), [("theirs", "ours"), ("ours", "theirs")])
def test_a_certificate_of_another_authority_is_refused(certificates: Path, signed_by: str, authority: str) -> None:
    async def act(peers: TcpPeers, member: Member) -> None:
        with pytest.raises(NotOwner):
            await peers.reach(member)

    called, _ = _tls(certificates, "ours", "ours")
    _, caller = _tls(certificates, signed_by, authority)
    met(act, called_tls=called, caller_tls=caller)


def test_a_certificate_can_be_renewed_while_nodes_run(certificates: Path, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("node.pem", "node.key", "authority.pem")]

    def install(signed_by: str) -> None:
        for name, file in zip((f"node-{signed_by}.pem", f"node-{signed_by}.key", "ours.pem"), names, strict=True):
            copyfile(certificates / name, file)

    def spoil() -> None:
        Path(names[1]).write_text("half of it")

    install("theirs")
    mine = peer_tls(*names)
    contexts = [context for context in mine if context is not None]

    async def act(peers: TcpPeers, member: Member) -> None:
        with pytest.raises(NotOwner):
            await peers.reach(member)
        spoil()
        renew_peer_tls(contexts, *names)
        with pytest.raises(NotOwner):
            await peers.reach(member)
        install("ours")
        renew_peer_tls(contexts, *names)
        assert await (await peers.reach(member)).ask(Acknowledge("shop", "q", ["a"])) == ["a"]

    called, _ = _tls(certificates, "ours", "ours")
    met(act, called_tls=called, caller_tls=mine[1])


def test_half_of_the_files_of_tls_are_too_few(tmp_path: Path) -> None:
    assert peer_tls("", "", "") == (None, None)
    with pytest.raises(ClusterError, match="all of"):
        peer_tls("cert", "", "")
    with pytest.raises(ClusterError, match="check --cluster-cert"):
        peer_tls(str(tmp_path / "cert"), str(tmp_path / "key"), str(tmp_path / "ca"))
