"""Questions between nodes of the fleet: a connection that proves nothing is closed at both ends."""

import asyncio
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import fleet
from muster_server.plane import calls
from muster_server.plane.calls import NONCE, CallError, Frame, Kind, Peer, Server, frame_of, key_of
from tests.ports import free_ports
from tests.waiting import PATIENT_S


class Question(msgspec.Struct, tag=True):
    """Any."""


@pytest.mark.parametrize("said", [b"", b"short", bytes(2 * NONCE)])
async def test_one_that_asks_closes_a_connection_that_does_not_prove_the_secret(said: bytes) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        peer = Peer(server.sockets[0].getsockname(), key_of(b"secret"))
        with pytest.raises(CallError, match=r"secret|does not answer"):
            await peer.ask(Question(), Question, PATIENT_S)
        async with asyncio.timeout(PATIENT_S):
            await ended.wait()


async def test_an_end_with_open_connections_is_no_error() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def answer(asked: Question) -> Question:
        return asked

    (port,) = free_ports(1)
    server, peer = Server(key_of(b"secret"), {Question: answer}), Peer(("127.0.0.1", port), key_of(b"secret"))
    await server.start("127.0.0.1", port)
    await peer.ask(Question(), Question, PATIENT_S)
    await server.stop()
    await peer.close()
    await asyncio.sleep(0)
    assert not told


async def test_agent_closes_a_connection_whose_broker_does_not_answer() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(PATIENT_S):
        _, port = server.sockets[0].getsockname()
        running = asyncio.create_task(fleet.Agent(f"mqtt://127.0.0.1:{port}", "a1", "password", {}).run())
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await ended.wait()


async def test_a_server_that_ends_says_nothing_of_connections_that_are_open() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    asked = asyncio.Event()

    async def never(_: Question) -> Question:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    (port,) = free_ports(1)
    server = Server(key_of(b"secret"), {Question: never})
    await server.start("127.0.0.1", port)
    peer = Peer(("127.0.0.1", port), key_of(b"secret"))
    asking = asyncio.create_task(peer.ask(Question(), Question, PATIENT_S))
    async with asyncio.timeout(PATIENT_S):
        await asked.wait()
        await server.stop()
        with pytest.raises(CallError, match="ended the connection"):
            await asking
    await peer.close()
    await asyncio.sleep(0)
    assert said == []


async def test_a_reply_comes_with_its_end_so_nothing_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Kind] = []
    read = calls._read

    async def watched(reader: asyncio.StreamReader) -> Frame:
        frame = await read(reader)
        kinds.append(frame.kind)
        return frame

    async def answer(question: Question) -> Question:
        return question

    monkeypatch.setattr(calls, "_read", watched)
    (port,) = free_ports(1)
    server = Server(key_of(b"secret"), {Question: answer})
    await server.start("127.0.0.1", port)
    peer = Peer(("127.0.0.1", port), key_of(b"secret"))
    for _ in range(3):
        assert await peer.ask(Question(), Question, PATIENT_S) == Question()
    await peer.close()
    await server.stop()
    assert kinds == ["ask", "item", "end"] * 3


class Written:
    """Stands for a connection's `StreamWriter`."""

    def __init__(self) -> None:
        self.data = b""

    def is_closing(self) -> bool:
        """Never."""
        return False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.data += data


@given(st.integers(0, (1 << 64) - 1), st.lists(st.tuples(st.sampled_from(get_args(Kind)), st.binary(max_size=20))))
def test_frames_are_written_as_a_whole_encoder_writes_them(number: int, frames: list[tuple[Kind, bytes]]) -> None:
    written: Any = Written()
    calls._write(written, number, *frames)
    whole = [
        msgspec.msgpack.encode(Frame(number, kind, msgspec.Raw(msgspec.msgpack.encode(body)))) for kind, body in frames
    ]
    assert written.data == b"".join(len(each).to_bytes(4, "big") + each for each in whole)


@given(st.integers(0, (1 << 64) - 1), st.sampled_from(get_args(Kind)), st.binary(max_size=20), st.integers(0, 30))
def test_a_frame_is_read_as_a_whole_decoder_reads_it_or_refused(number: int, kind: Kind, body: bytes, cut: int) -> None:
    packed = msgspec.msgpack.encode(Frame(number, kind, msgspec.Raw(msgspec.msgpack.encode(body))))
    read = frame_of(packed)
    assert (read.number, read.kind, msgspec.msgpack.decode(read.body)) == (number, kind, body)
    for bytes_ in (packed[: min(cut, len(packed) - 1)], body):
        try:
            told = frame_of(bytes_)
            msgspec.msgpack.decode(told.body)
        except msgspec.DecodeError:
            continue
        assert told == msgspec.msgpack.decode(bytes_, type=Frame)
