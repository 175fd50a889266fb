"""Who gets in, what a stranger can do (nothing), and what becomes of peers that send junk. Real sockets."""

from __future__ import annotations

import random
import secrets
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from chains.errors import StartError, Unauthenticated, Unavailable
from chains.runtime.host import Hosted
from chains.wire import frames
from chains.wire.frames import BULK, CONNECT
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import Tls, WireSettings, new_token
from tests.chains.wire.hosted import calling, hosted

SETTINGS = WireSettings(new_token())


@pytest.fixture
async def replica() -> AsyncIterator[Hosted]:
    async with hosted(SETTINGS) as made:
        yield made


@pytest.fixture
async def channel(replica: Hosted) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(replica.server.address) as made:
        yield made


def known(token: str = SETTINGS.token) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}"), ("chains-connection", secrets.token_hex(16))]


async def refused(call: Any, sent: bytes = b"") -> tuple[str, str]:
    """The status that the server ends `call` with, after `sent`; everything that it writes before is read."""
    try:
        if sent:
            await call.write(sent)
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return (await call.code()).name, await call.details()


# strangers


@pytest.mark.parametrize("method", [CONNECT, BULK])
@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [("authorization", "Bearer ")],
        [("authorization", "Bearer " + "x" * len(SETTINGS.token))],
        [("authorization", SETTINGS.token)],
        [("authorization", f"Bearer {SETTINGS.token}x")],
        [("authorization", f"Bearer {SETTINGS.token[:-1]}")],
        [("chains-connection", "0" * 32)],
    ],
)
async def test_a_stranger_is_sent_away(replica: Hosted, channel: Any, method: str, metadata: Any) -> None:
    call = channel.stream_stream(method)(metadata=metadata)
    opening = frames.framed(pb.Frame(call=1, open=pb.Open(method="echo")))
    code, details = await refused(call, opening)
    # gRPC may tell of the reset before it tells of the status, when the frame was still on its way
    assert code == "UNAUTHENTICATED" or (code == "INTERNAL" and "RST_STREAM" in details)
    assert replica.host.replica.running == {} and replica.host.open == {} and replica.server._links == {}


async def test_a_stranger_hears_nothing_of_the_replica(replica: Hosted, channel: Any) -> None:
    code, details = await refused(channel.stream_stream(CONNECT)(), b"\xff" * 10)
    assert code == "UNAUTHENTICATED"
    assert "Probe" not in details and SETTINGS.token not in details


async def test_there_is_nothing_else(replica: Hosted, channel: Any) -> None:
    for path in ("/chains.v1.Carrier/Other", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"):
        assert (await refused(channel.stream_stream(path)(metadata=known())))[0] == "UNIMPLEMENTED"


async def test_a_wrong_token_is_ours_to_explain(replica: Hosted) -> None:
    async with calling(replica.server.address, WireSettings(new_token())) as caller, caller.open_call():
        with pytest.raises(Unauthenticated, match="give both the deployment's token"):
            await caller.remote.reached()


# peers that know the token, and nothing else


async def test_a_connection_has_an_id_of_its_own(replica: Hosted, channel: Any) -> None:
    bearer = [("authorization", f"Bearer {SETTINGS.token}")]
    assert (await refused(channel.stream_stream(CONNECT)(metadata=bearer)))[0] == "INVALID_ARGUMENT"
    mine = known()
    first = channel.stream_stream(CONNECT)(metadata=mine)
    await first.read()
    code, details = await refused(channel.stream_stream(CONNECT)(metadata=mine))
    assert code == "INVALID_ARGUMENT" and "in use" in details
    first.cancel()


async def test_bulk_belongs_to_a_connection(replica: Hosted, channel: Any) -> None:
    code, details = await refused(channel.stream_stream(BULK)(metadata=known()))
    assert code == "INVALID_ARGUMENT" and "no connection" in details


JUNK: dict[str, bytes] = {
    "no protobuf": b"\xff" * 40,
    "a frame of no kind": frames.framed(pb.Frame(call=1)),
    "a frame from the future": b"\n\x04\x08\x01\x9a\x06",
    "an end from the caller": frames.framed(pb.Frame(call=1, open=pb.Open(method="gated")))
    + frames.framed(pb.Frame(call=1, end=pb.End())),
    "credit for nothing": frames.framed(pb.Frame(call=1, open=pb.Open(method="endless", window=1 << 40)))
    + frames.framed(pb.Frame(call=1, credit=pb.Credit(bytes=1 << 60))),
    "an item of no stream": frames.framed(pb.Frame(call=1, open=pb.Open(method="gated")))
    + frames.framed(pb.Frame(call=1, item=pb.Item(stream=3, value=pb.Value(header=b"\x92\x00\x01")))),
    "items without credit": frames.framed(
        pb.Frame(call=1, open=pb.Open(method="total", streams=[pb.StreamArgument(name="numbers", window=10)]))
    )
    + frames.framed(pb.Frame(call=1, item=pb.Item(stream=1, value=pb.Value(header=b"\x92\x00\x01")))) * 2,
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_junk_ends_the_connection_with_a_word(replica: Hosted, channel: Any, junk: bytes) -> None:
    code, details = await refused(channel.stream_stream(CONNECT)(metadata=known()), junk)
    assert code == "INVALID_ARGUMENT" and details
    async with calling(replica.server.address, SETTINGS) as caller, caller.open_call():
        assert await caller.probe.echo(1) == 1, "others are served as before"


async def test_any_bytes_leave_the_server_standing(replica: Hosted, channel: Any) -> None:
    """Frames that were right once, with bytes turned: each connection ends, or ignores them; the server serves on."""
    chance = random.Random(7)
    right = b"".join(JUNK.values()) + frames.framed(
        pb.Frame(
            call=2,
            open=pb.Open(
                method="book", arguments=[pb.Argument(name="booking", value=pb.Value(header=b"\x92\x00\x80"))]
            ),
        )
    )
    for _ in range(60):
        wrong = bytearray(right[: chance.randrange(1, len(right))])
        for _ in range(chance.randrange(1, 6)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        call = channel.stream_stream(CONNECT)(metadata=known())
        await call.read()
        bulk = channel.stream_stream(BULK)(metadata=known())
        try:
            await call.write(bytes(wrong))
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        assert (await call.code()).name in ("OK", "INVALID_ARGUMENT", "OUT_OF_RANGE")
        bulk.cancel()
    async with calling(replica.server.address, SETTINGS) as caller, caller.open_call():
        assert await caller.probe.echo(1) == 1
    assert len(replica.host.open) == 0


async def test_a_message_past_the_limit_is_refused(replica: Hosted, channel: Any) -> None:
    code, _ = await refused(channel.stream_stream(CONNECT)(metadata=known()), b"\n" * 2_000_000)
    assert code == "RESOURCE_EXHAUSTED"


async def test_connections_are_counted() -> None:
    one = replace(SETTINGS, connections=1)
    async with hosted(one) as replica, grpc.aio.insecure_channel(replica.server.address) as channel:
        first = channel.stream_stream(CONNECT)(metadata=known())
        await first.read()
        code, details = await refused(channel.stream_stream(CONNECT)(metadata=known()))
        assert code == "OUT_OF_RANGE" and "WireSettings.connections" in details
        first.cancel()


async def test_a_port_in_use_is_a_start_error(replica: Hosted) -> None:
    with pytest.raises(StartError, match="cannot be listened on"):
        async with hosted(replace(SETTINGS, bind=replica.server.address)):
            pass


# TLS


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate authority, and a certificate of its for a server and for a caller."""
    folder = tmp_path_factory.mktemp("pem")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-days", "1", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=DNS:replica.chains,IP:127.0.0.1\n")
    for name in ("server", "caller"):
        openssl("req", *ec, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


def tls(pem: Path, own: str, ca: bool) -> Tls:
    cert, key = (str(pem / f"{own}.pem"), str(pem / f"{own}.key")) if own else ("", "")
    return Tls(cert, key, str(pem / "ca.pem") if ca else "")


async def test_tls_and_mutual_tls(pem: Path) -> None:
    for asked in (False, True):
        async with hosted(replace(SETTINGS, tls=tls(pem, "server", asked))) as replica:
            mine = replace(SETTINGS, tls=tls(pem, "caller" if asked else "", True))
            async with calling(replica.server.address, mine) as caller, caller.open_call():
                assert await caller.probe.echo(3) == 3
            for wrong in (SETTINGS, replace(SETTINGS, tls=tls(pem, "", asked))):  # plain; unknown CA; no certificate
                async with calling(replica.server.address, wrong) as caller:
                    with pytest.raises(Unavailable):
                        await caller.remote.reached()
