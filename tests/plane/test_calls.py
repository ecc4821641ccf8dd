"""Requests between processes: what both ends promise, and what they make of any input.

This suite serves all systems whose nodes ask each other. An end that has not proved the secret gets nothing decoded; one
that has proved it and sends nonsense loses its connection or its request, and no other.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.plane import calls
from muster_server.plane.calls import NONCE, CallError, Frame, Kind, Peer, Server, frame_of, key_of
from tests.waiting import PATIENT_S, until

KEY = key_of(b"secret")
encode = msgspec.msgpack.encode


class Double(msgspec.Struct, tag=True):
    """The reply is the value added to itself."""

    value: Any = 1
    text: str = ""


class Count(msgspec.Struct, tag=True):
    """The replies are `count` numbers."""

    count: int


class Wait(msgspec.Struct, tag=True):
    """Answered once `hold` is set."""


class Fail(msgspec.Struct, tag=True):
    """Its handler fails."""

    code: str = ""


class Node:
    """A serving end."""

    def __init__(self, file: Path | None) -> None:
        """`file`: of the Unix socket at which it serves; None: it serves TCP."""
        self.file = file
        self.hold, self.ended = asyncio.Event(), asyncio.Event()
        self.waiting = self.counted = 0
        served: dict[type[msgspec.Struct], calls.Serve] = {
            Double: self.double,
            Count: self.count,
            Wait: self.wait,
            Fail: self.fail,
        }
        self.server = Server(KEY, served)

    async def double(self, asked: Double) -> Any:
        return asked.value + asked.value

    async def count(self, asked: Count) -> AsyncIterator[int]:
        try:
            for number in range(asked.count):
                self.counted += 1
                yield number
            await self.hold.wait()
        finally:
            self.ended.set()

    async def wait(self, _: Wait) -> int:
        self.waiting += 1
        try:
            await self.hold.wait()
        finally:
            self.waiting -= 1
        return 7

    async def fail(self, asked: Fail) -> None:
        if asked.code:
            raise CallError(asked.code, "refused")
        raise ZeroDivisionError

    @property
    def address(self) -> calls.Address:
        return self.file or ("127.0.0.1", self.server.port)


@pytest.fixture
async def told() -> list[dict[str, Any]]:
    """What the loop would log as an error."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


@pytest.fixture(params=["TCP", "a Unix socket"])
async def node(request: pytest.FixtureRequest, told: list[dict[str, Any]], tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(None if request.param == "TCP" else tmp_path / "calls.sock")
    if made.file is None:
        await made.server.start("127.0.0.1", 0)
    else:
        await made.server.start_at(made.file)
    async with asyncio.timeout(PATIENT_S):
        yield made
    await made.server.stop()
    assert not told


@pytest.fixture
async def peer(node: Node) -> AsyncIterator[Peer]:
    made = Peer(node.address, KEY)
    yield made
    await made.close()


async def ask(peer: Peer, question: msgspec.Struct | None = None) -> Any:
    return await peer.ask(question or Double(), Any, PATIENT_S)


# --- requests -----------------------------------------------------------------------------------------------------------


async def test_all_requests_share_a_connection_and_each_gets_its_reply(node: Node, peer: Peer) -> None:
    waiting = [asyncio.create_task(ask(peer, Wait())) for _ in range(10)]
    values = [b"x" * each * 3_000 for each in range(20)]
    assert await asyncio.gather(*(ask(peer, Double(each)) for each in values)) == [2 * each for each in values]
    node.hold.set()
    assert await asyncio.gather(*waiting) == [7] * 10
    assert len(node.server._connections) == 1


async def test_a_stream_ends_at_either_end(node: Node, peer: Peer) -> None:
    async with contextlib.aclosing(peer.stream(Count(20), int)) as numbers:
        assert [await anext(numbers) for _ in range(20)] == list(range(20))
    await node.ended.wait()
    node.hold.set()
    assert [each async for each in peer.stream(Count(3), int)] == [0, 1, 2]


async def test_a_request_whose_asker_is_gone_is_cancelled(node: Node, peer: Peer) -> None:
    asking = asyncio.create_task(ask(peer, Wait()))
    await until(lambda: node.waiting)
    asking.cancel()
    await until(lambda: not node.waiting)
    assert await ask(peer) == 2


async def test_a_stream_goes_no_faster_than_it_is_read(node: Node) -> None:
    """The serving end waits for the sockets: it makes no reply before there is room."""
    async with proven(node) as (_, writer):
        writer.write(frame(1, "ask", encode(Count(1 << 20))))
        last = -1
        while node.counted != last:
            last = node.counted
            await asyncio.sleep(0.2)
        assert 0 < node.counted < 1 << 20


async def test_a_failure_of_a_handler_is_answered_and_told(node: Node, peer: Peer, told: list[dict[str, Any]]) -> None:
    with pytest.raises(CallError, match="refused") as refused:
        await ask(peer, Fail("conflict"))
    assert (refused.value.code, refused.value.maybe_done) == ("conflict", False)
    with pytest.raises(CallError, match="log of the node") as failed:
        await ask(peer, Fail())
    assert failed.value.code == "internal"
    (context,) = told
    told.clear()
    assert "Fail" in context["message"]
    assert isinstance(context["exception"], ZeroDivisionError)
    assert await ask(peer) == 2


async def test_too_long_a_request_or_reply_fails_alone(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "FRAME_BYTES_MAX", 10_000)
    waiting = asyncio.create_task(ask(peer, Wait()))
    with pytest.raises(CallError, match="request too long") as failed:
        await ask(peer, Double("x" * 10_000))
    assert (failed.value.code, failed.value.maybe_done) == ("too_long", False)
    with pytest.raises(CallError, match="reply too long"):
        await ask(peer, Double("x" * 6_000))
    node.hold.set()
    assert await waiting == 7


async def test_requests_beyond_the_limit_are_refused(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OPEN_MAX", 3)
    waiting = [asyncio.create_task(ask(peer, Wait())) for _ in range(3)]
    await until(lambda: node.waiting == 3)
    with pytest.raises(CallError) as refused:
        await ask(peer)
    assert refused.value.code == "busy"
    node.hold.set()
    assert await asyncio.gather(*waiting) == [7, 7, 7]
    assert await ask(peer) == 2


# --- ends ---------------------------------------------------------------------------------------------------------------


async def test_a_server_that_ends_cuts_open_requests_and_logs_nothing(node: Node, peer: Peer) -> None:
    asking = asyncio.create_task(ask(peer, Wait()))
    await until(lambda: node.waiting)
    await node.server.stop()
    with pytest.raises(CallError, match="ended the connection") as cut:
        await asking
    assert (cut.value.code, cut.value.maybe_done) == ("away", True)
    with pytest.raises(CallError, match="does not answer") as away:
        await ask(peer)
    assert (away.value.code, away.value.maybe_done) == ("away", False)


async def test_a_server_that_finishes_answers_open_requests_and_refuses_further_ones(node: Node, peer: Peer) -> None:
    asking = asyncio.create_task(ask(peer, Wait()))
    await until(lambda: node.waiting)
    stopping = asyncio.create_task(node.server.stop(PATIENT_S))
    await asyncio.sleep(0)
    with pytest.raises(CallError, match="is ending") as refused:
        await ask(peer)
    assert (refused.value.code, refused.value.maybe_done) == ("away", False)
    node.hold.set()
    assert await asking == 7
    await stopping


async def test_a_left_connection_ends_with_its_last_reply(node: Node, peer: Peer) -> None:
    asking = asyncio.create_task(ask(peer, Wait()))
    await until(lambda: node.waiting)
    peer.leave()
    assert await ask(peer) == 2
    assert len(node.server._connections) == 2
    node.hold.set()
    assert await asking == 7
    await until(lambda: len(node.server._connections) == 1)
    peer.leave()
    await until(lambda: not node.server._connections)


async def test_requests_share_an_attempt_to_connect_and_its_failure() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with listening(serve) as peer:
        answers = await asyncio.gather(*(ask(peer) for _ in range(50)), return_exceptions=True)
        assert {type(each) for each in answers} == {CallError}
        assert connections == 1


async def test_a_silent_connection_gets_no_further_request(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other end may be gone without a word; requests that wait there may still be answered."""
    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    peer = Peer(node.address, KEY)
    asking = asyncio.create_task(ask(peer, Wait()))
    await until(lambda: node.waiting)
    with pytest.raises(CallError, match="did not reply") as late:
        await peer.ask(Wait(), int, 0.1)
    assert (late.value.code, late.value.maybe_done) == ("late", True)
    assert await ask(peer) == 2
    assert len(node.server._connections) == 2
    with pytest.raises(CallError, match="sent nothing for"):
        assert [each async for each in peer.stream(Count(1), int, 0.1)] == [0]
    node.hold.set()
    assert await asking == 7
    await until(lambda: not node.server._connections)
    await peer.close()


async def test_a_close_cuts_an_attempt_to_connect() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(serve) as peer:
        asking = asyncio.create_task(ask(peer))
        await until(lambda: peer._connecting)
        await peer.close()
        with pytest.raises(CallError, match="closed"):
            await asking


# --- frames ---------------------------------------------------------------------------------------------------------------


async def test_a_reply_comes_with_its_end_so_nothing_is_taken_back(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[Kind] = []
    read = calls._read

    async def watched(reader: asyncio.StreamReader) -> Frame:
        frame = await read(reader)
        kinds.append(frame.kind)
        return frame

    monkeypatch.setattr(calls, "_read", watched)
    for _ in range(3):
        assert await ask(peer) == 2
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


# --- strangers ------------------------------------------------------------------------------------------------------------


def _echo(nonce: bytes) -> bytes:
    return nonce + calls._proof(KEY, b"serves", nonce, nonce)


STRANGERS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "half": lambda _: bytes(NONCE),
    "zeros": lambda _: bytes(2 * NONCE),
    "HTTP": lambda _: b"POST /insert HTTP/1.1\r\nhost: a\r\nauthorization: Bearer secret\r\ncontent-length: 0\r\n\r\n",
    "another secret": lambda nonce: bytes(NONCE) + calls._proof(key_of(b"other"), b"asks", nonce, bytes(NONCE)),
    "another connection's proof": lambda _: bytes(NONCE) + calls._proof(KEY, b"asks", bytes(NONCE), bytes(NONCE)),
    "the proof of the serving end": _echo,
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS.keys())
async def test_a_stranger_gets_nothing_and_is_counted(said: Callable[[bytes], bytes], node: Node) -> None:
    reader, writer = await calls._open(node.address)
    nonce = await reader.readexactly(NONCE)
    writer.write(said(nonce))
    writer.write(frame(1, "ask", encode(Double())) if said(nonce) else b"")
    writer.write_eof()
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    assert (node.server.asked, node.server.refused) == (0, 1)


async def test_a_stranger_that_stays_is_cut(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PROOF_S", 0.05)
    reader, writer = await calls._open(node.address)
    assert len(await reader.read()) == NONCE
    writer.close()
    assert node.server.refused == 1


@pytest.mark.parametrize("said", [b"", b"short", bytes(2 * NONCE), b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40)])
async def test_an_asking_end_leaves_a_server_that_proves_nothing(said: bytes) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()
        ended.set()

    async with listening(serve) as peer:
        with pytest.raises(CallError, match="secret") as away:
            await ask(peer)
        assert (away.value.code, away.value.maybe_done) == ("away", False)
        await ended.wait()


async def test_a_server_of_another_protocol_is_named_as_one_that_may_be_of_another_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers of HTTP wait for a request, as nodes of messages of 0.2 do."""
    monkeypatch.setattr(calls, "PROOF_S", 0.05)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with listening(serve) as peer:
        with pytest.raises(CallError, match="its release has another protocol"):
            await ask(peer)


# --- nonsense of an end that knows the secret -------------------------------------------------------------------------


def frame(number: Any, kind: Any, body: bytes = b"\xc0") -> bytes:
    content = encode([number, kind, msgspec.Raw(body)])
    return struct.pack("!I", len(content)) + content


def framed(content: bytes) -> bytes:
    return struct.pack("!I", len(content)) + content


DEEP = b"\x91" * 100_000 + b"\xc0"
FRAMES = {
    "longer than allowed": struct.pack("!I", (1 << 32) - 1),
    "empty": framed(b""),
    "no MessagePack": framed(b"\xc1"),
    "cut": framed(encode([1, "ask"])[:-2]),
    "no array": framed(encode({"number": 1})),
    "too few fields": framed(encode([1])),
    "a number that is none": frame("1", "ask"),
    "a negative number": frame(-5, "ask"),
    "no body": framed(b"\x93\x01\xa3ask"),
    "an unknown kind": frame(1, "jump"),
    "a kind that is not UTF-8": framed(b"\x93\x01\xa3\xff\xfe\xfd\xc0"),
    "a number in use": frame(1, "ask", encode(Wait())) * 2,
}


@pytest.mark.parametrize("said", FRAMES.values(), ids=FRAMES.keys())
async def test_a_malformed_frame_ends_its_connection_and_no_other(said: bytes, node: Node, peer: Peer) -> None:
    waiting = asyncio.create_task(ask(peer, Wait()))
    async with proven(node) as (reader, writer):
        writer.write(said)
        await reader.read()
    node.hold.set()
    assert await waiting == 7
    assert node.waiting == 0


QUESTIONS = {
    "nested too deep": DEEP,
    "cut": b"\xa4te",
    "followed by more": b"\xc0\x00",
    "no question": b"\xc0",
    "an unknown one": encode({"type": "Jump"}),
    "without a name": encode({"count": 1}),
    "a value of another type": encode({"type": "Count", "count": "1"}),
    "a missing field": encode({"type": "Count"}),
    "a text that is not UTF-8": encode({"type": "Double", "text": "abc"}).replace(b"\xa3abc", b"\xa3\xff\xfe\xfd"),
}


@pytest.mark.parametrize("said", QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_a_malformed_question_is_answered_and_the_connection_serves_on(said: bytes, node: Node) -> None:
    async with proven(node) as (reader, writer):
        writer.write(frame(1, "ask", said) + frame(2, "ask", encode(Double(4))))
        number, kind, body = await read(reader)
        assert (number, kind, body[0]) == (1, "error", "question"), body
        assert await read(reader) == (2, "item", 8)


async def test_frames_of_the_wrong_direction_and_strange_numbers_change_nothing(node: Node) -> None:
    async with proven(node) as (reader, writer):
        for kind in ("item", "end", "error", "drop"):
            writer.write(frame(9, kind, encode(["away", "x"])))
        writer.write(frame(1 << 63, "ask", encode(Double(4))) + frame(0, "drop"))
        assert await read(reader) == (1 << 63, "item", 8)


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_bytes_harm_no_other_connection(seed: int, node: Node, peer: Peer) -> None:
    dice = random.Random(seed)
    whole = b"".join(
        frame(number, kind, encode(question))
        for number, (kind, question) in enumerate(
            [("ask", Double("abc")), ("ask", Count(2)), ("drop", None), ("ask", Wait()), ("ask", Double(7))], 1
        )
    )
    for _ in range(40):
        said = bytearray(whole)
        for _ in range(dice.choice([1, 1, 2, 8])):
            said[dice.randrange(len(said))] = dice.randrange(256)
        async with proven(node) as (reader, writer):
            writer.write(said)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
    assert await ask(peer) == 2
    await until(lambda: len(node.server._connections) == 1)


# --- nonsense of a server that knows the secret ------------------------------------------------------------------------

ENDS = {
    "nothing": b"",
    "half a frame": frame(1, "item", encode("text"))[:-2],
    "a frame longer than allowed": struct.pack("!I", (1 << 32) - 1),
    "no MessagePack": framed(b"\xc1"),
    "an unknown kind": frame(1, "jump"),
    "replies of no request": frame(77, "item") + frame(-1, "error", encode(["a", "b"])),
}


@pytest.mark.parametrize("said", ENDS.values(), ids=ENDS.keys())
async def test_a_server_that_ends_in_the_middle_is_away(said: bytes, told: list[dict[str, Any]]) -> None:
    async with answering(said) as peer:
        with pytest.raises(CallError, match="ended the connection") as away:
            await ask(peer)
        assert (away.value.code, away.value.maybe_done) == ("away", True)
    assert not told


REPLIES = {
    "another type": frame(1, "item", encode("text")),
    "not UTF-8": frame(1, "item", b"\xa3\xff\xfe\xfd"),
    "nested too deep": framed(b"\x93\x01\xa4item" + DEEP),
    "none": frame(1, "end"),
    "an error without a code": frame(1, "error", encode(["away"])),
    "an error that is none": frame(1, "error", encode(7)),
}


@pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES.keys())
async def test_a_malformed_reply_is_an_error_of_its_request(said: bytes) -> None:
    async with answering(said + frame(2, "item", encode(4))) as peer:
        with pytest.raises(CallError) as failed:
            await peer.ask(Double(), int, PATIENT_S)
        assert failed.value.code == "reply"


async def test_a_flood_of_replies_ends_its_request() -> None:
    async with answering(frame(1, "item", encode(1)) * (calls.ITEMS_MAX + 2)) as peer:
        stream = peer.stream(Count(1), int)
        assert await anext(stream) == 1
        await until(lambda: peer._connection is None or not peer._connection.open)
        with pytest.raises(CallError, match="faster than this process reads") as slow:
            [each async for each in stream]
        assert slow.value.code == "slow"


# --- ends by hand ---------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def proven(node: Node) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of an asking end that knows the secret."""
    reader, writer = await calls._open(node.address)
    theirs, mine = await reader.readexactly(NONCE), bytes(NONCE)
    writer.write(mine + calls._proof(KEY, b"asks", theirs, mine))
    assert await reader.readexactly(NONCE) == calls._proof(KEY, b"serves", theirs, mine)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read(reader: asyncio.StreamReader) -> tuple[int, str, Any]:
    """The next frame that is not an end."""
    while True:
        (length,) = struct.unpack("!I", await reader.readexactly(4))
        number, kind, body = msgspec.msgpack.decode(await reader.readexactly(length))
        if kind != "end":
            return number, kind, body


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Talk) -> AsyncGenerator[Peer]:
    """A peer of a server that does as it likes."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(PATIENT_S):
        peer = Peer(server.sockets[0].getsockname(), KEY)
        try:
            yield peer
        finally:
            await peer.close()


@contextlib.asynccontextmanager
async def answering(said: bytes) -> AsyncGenerator[Peer]:
    """A peer of a server that knows the secret, and answers its first request by these bytes and its end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(NONCE))
        theirs = (await reader.readexactly(2 * NONCE))[:NONCE]
        writer.write(calls._proof(KEY, b"serves", bytes(NONCE), theirs))
        await reader.readexactly(4)
        writer.write(said)
        writer.write_eof()
        await reader.read()
        writer.close()

    async with listening(serve) as peer:
        yield peer
