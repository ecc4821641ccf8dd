"""`sub` prints bytes as they are and gaps apart; `pub` keeps the order and waits for the last answer."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator

import pytest

from control.console import pipes
from control.errors import FAILURE, UserError
from control.rooms import pub
from control.rooms.sub import show, take
from tests.fakes.library import Client, Gap, Message

ONE, TWO = Message("r", 1, 7, b"one"), Message("r", 2, 7, b"\xff\x00")
GAP = Gap(5, 3, None, "owner_lost")


async def shown(*items: Message | Gap, as_json: bool) -> bytes:
    """The output of one pipe for both stdout and stderr."""
    ours, theirs = os.pipe()
    await asyncio.wait_for(show(pipes.Writer(theirs), pipes.Writer(theirs), items, as_json), 5)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        return pipe.read()


async def test_messages_are_printed_byte_for_byte_and_gaps_where_they_are() -> None:
    gaps = b"gap stream=5 first=3 last=unknown reason=owner_lost\ngap stream=5 first=3 last=4 reason=slow\n"
    printed = await shown(ONE, GAP, Gap(5, 3, 4, "slow"), TWO, as_json=False)
    assert printed == b"one\n" + gaps + b"\xff\x00\n"


async def test_json_keeps_order_and_bytes_that_are_no_text() -> None:
    documents = [json.loads(line) for line in (await shown(ONE, GAP, TWO, as_json=True)).splitlines()]
    assert documents == [
        {"room": "r", "position": "1", "sender": 7, "data": "one"},
        {"gap": {"stream": "5", "first": 3, "last": None, "reason": "owner_lost"}},
        {"room": "r", "position": "2", "sender": 7, "data_base64": "/wA="},
    ]


async def test_who_reads_the_gaps_no_more_ends_no_messages() -> None:
    (ours, theirs), (unread, broken) = os.pipe(), os.pipe()
    os.close(unread)
    await asyncio.wait_for(show(pipes.Writer(theirs), pipes.Writer(broken), [ONE, GAP, TWO], as_json=False), 5)
    os.close(broken)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert pipe.read() == b"one\n\xff\x00\n"


async def test_who_does_not_read_the_gaps_does_not_stop_the_loop() -> None:
    (ours, theirs), (unread, full) = os.pipe(), os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(full, bytes(1 << 12))
    os.set_blocking(full, True)
    showing = asyncio.create_task(show(pipes.Writer(theirs), pipes.Writer(full), [ONE, GAP, TWO], as_json=False))
    await asyncio.sleep(0.05)
    assert not showing.done()
    os.close(unread)
    await asyncio.wait_for(showing, 5)
    for descriptor in (ours, theirs, full):
        os.close(descriptor)


def test_only_messages_count() -> None:
    assert take([GAP, ONE, GAP, TWO], 1) == ([GAP, ONE], 0)
    assert take([ONE, TWO], None) == ([ONE, TWO], None)
    assert take([ONE], 3) == ([ONE], 2)


async def read_all(descriptor: int) -> list[bytes]:
    return [line async for batch in pipes.lines(descriptor, 10) for line in batch]


@pytest.mark.parametrize(
    ("text", "wanted"), [(b"", []), (b"a\nb\n", [b"a", b"b"]), (b"a\n\nb", [b"a", b"", b"b"]), (b"\n", [b""])]
)
async def test_lines_are_split_as_they_were(text: bytes, wanted: list[bytes]) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, text)
    os.close(theirs)
    assert await read_all(ours) == wanted
    os.close(ours)


async def test_a_line_comes_through_before_the_pipe_ends() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"now\nhal")
    lines = pipes.lines(ours, 10)
    assert await asyncio.wait_for(anext(lines), 5) == [b"now"]
    os.write(theirs, b"f\n")
    assert await asyncio.wait_for(anext(lines), 5) == [b"half"]
    os.close(theirs)
    assert [batch async for batch in lines] == []
    os.close(ours)


async def test_a_blocked_pipe_does_not_block_the_loop_and_a_closed_one_is_told() -> None:
    ours, theirs = os.pipe()
    writer = pipes.Writer(theirs)
    blocked = asyncio.create_task(writer.write(bytes(1 << 20)))
    await asyncio.sleep(0.05)
    assert not blocked.done()
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(blocked, 5)
    os.close(theirs)


async def feed(monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> None:
    async def given(_descriptor: int, _longest: int) -> AsyncIterator[list[bytes]]:
        for start in range(0, len(lines), 100):
            await asyncio.sleep(0)
            yield lines[start : start + 100]

    monkeypatch.setattr(pipes, "lines", given)


async def test_a_line_that_does_not_end_is_not_kept() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"one\n" + bytes(11))
    lines = pipes.lines(ours, 10)
    assert await anext(lines) == [b"one"]
    with pytest.raises(UserError, match="line 2 is longer than 10 bytes"):
        await asyncio.wait_for(anext(lines), 5)
    os.close(theirs)
    os.close(ours)


async def test_a_line_is_published_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    async def given(_descriptor: int, _longest: int) -> AsyncIterator[list[bytes]]:
        for line in (b"one", b"two"):
            yield [line]
            assert client.published[-1] == line

    monkeypatch.setattr(pipes, "lines", given)
    assert await pub.send(client, "room", lambda sent: None) == 2


async def test_all_lines_are_published_in_order_and_the_last_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(number).encode() for number in range(1000)]
    await feed(monkeypatch, lines)
    client = Client(credit=64)
    assert await pub.send(client, "room", lambda sent: None) == 1000
    assert client.published == lines
    assert client.waited >= 1000 // 65
    assert client.flushed == 1000


async def test_a_signal_waits_for_what_was_read_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    async def given(_descriptor: int, _longest: int) -> AsyncIterator[list[bytes]]:
        yield [b"one"]
        await asyncio.Event().wait()

    monkeypatch.setattr(pipes, "lines", given)
    stepped = asyncio.Event()
    sending = asyncio.create_task(pub.send(client, "room", lambda sent: stepped.set()))
    await stepped.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert client.flushed == 1


async def test_a_signal_while_lines_are_not_acknowledged_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    await feed(monkeypatch, [b"one"])
    client, flushing = Client(), asyncio.Event()

    async def never() -> None:
        flushing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "flush", never)
    sending = asyncio.create_task(pub.send(client, "room", lambda sent: None))
    await flushing.wait()
    sending.cancel()
    with pytest.raises(UserError, match="ended by a signal before every line was acknowledged") as told:
        await sending
    assert told.value.exit_code == FAILURE


async def test_nothing_is_published_for_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    await feed(monkeypatch, [])
    client = Client()
    assert await pub.send(client, "room", lambda sent: None) == 0
    assert client.published == []


async def test_a_line_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    await feed(monkeypatch, [b"short", bytes(65_537)])
    client = Client()
    with pytest.raises(UserError, match="line 2 has 65537 bytes"):
        await pub.send(client, "room", lambda sent: None)
    assert client.published == [b"short"]
    assert client.flushed == 1, "what stands before it is published"
