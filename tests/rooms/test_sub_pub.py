"""`sub` prints bytes as they are and gaps apart; `pub` keeps the order and waits for the last answer."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import muster
from muster_server.control.errors import FAILURE, UserError
from muster_server.control.terminal import pipes
from muster_server.systems.rooms.cli import pub
from muster_server.systems.rooms.cli.sub import filter_of, show, take
from tests.fakes.library import Client, Gap, Message
from tests.waiting import PATIENT_S

ONE, TWO = Message("r", 1, 7, b"one"), Message("r", 2, 7, b"\xff\x00", age=0.01234567)
GAP = Gap(5, 3, None, "owner_lost")


async def shown(*items: Message | Gap, as_json: bool, plain: bool = True) -> bytes:
    """The output of one pipe for both stdout and stderr."""
    ours, theirs = os.pipe()
    await asyncio.wait_for(show(pipes.Writer(theirs), pipes.Writer(theirs), items, as_json, plain), PATIENT_S)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        return pipe.read()


async def test_messages_are_printed_byte_for_byte_and_gaps_where_they_are() -> None:
    gaps = b"gap stream=5 first=3 last=unknown reason=owner_lost\ngap stream=5 first=3 last=4 reason=slow\n"
    printed = await shown(ONE, GAP, Gap(5, 3, 4, "slow"), TWO, as_json=False)
    assert printed == b"one\n" + gaps + b"\xff\x00\n"


async def test_json_keeps_order_and_bytes_that_are_no_text() -> None:
    documents = [json.loads(line) for line in (await shown(ONE, GAP, TWO, as_json=True)).splitlines()]
    times = [datetime.fromisoformat(document.pop("time")) for document in documents]
    assert all(abs(datetime.now(UTC) - time) < timedelta(minutes=1) for time in times)
    assert documents == [
        {"room": "r", "position": "1.1.1:1", "stream": "1.1.1", "sender": 7, "data": "one"},
        {"room": "r", "gap": {"stream": "5", "first": 3, "last": None, "reason": "owner_lost"}},
        {"room": "r", "position": "1.1.1:2", "stream": "1.1.1", "sender": 7, "age": 0.012346, "data_base64": "/wA="},
    ]


async def test_json_has_the_headers_of_a_message() -> None:
    message = Message("r", 1, 7, b"one", headers={"kind": "goal"})
    document = json.loads(await shown(message, as_json=True))
    assert document["headers"] == {"kind": "goal"}
    assert await shown(message, as_json=False) == b"one\n"


async def test_each_message_is_published_with_the_headers_of_the_command() -> None:
    client = Client()
    what = pub.What("{n}", count=2, headers=pub.headers_of(["kind=goal", "note=a=b", "empty="]))
    await pub.send(client, "room", lambda sent: None, what)
    assert client.headers == [{"kind": "goal", "note": "a=b", "empty": ""}] * 2
    for wrong in (["kind"], ["a=1", "a=2"]):
        with pytest.raises(UserError, match="--header"):
            pub.headers_of(wrong)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'{\n  "goal": 1,\n  "by": [7,\n 8]\n}\n', b'{"goal": 1, "by": [7, 8]}'),
        (b'{"as": "it is"}', b'{"as": "it is"}'),
        (b"{no\njson", b"{no\njson"),
        ('[\n"\u202e"]'.encode(), b'["\\u202e"]'),
    ],
)
async def test_json_is_one_line_on_a_terminal(data: bytes, line: bytes) -> None:
    assert await shown(Message("r", 1, 7, data), as_json=False, plain=False) == line + b"\n"
    assert await shown(Message("r", 1, 7, data), as_json=False) == data + b"\n", "a pipe gets what was published"


async def test_who_reads_the_gaps_no_more_ends_no_messages() -> None:
    (ours, theirs), (unread, broken) = os.pipe(), os.pipe()
    os.close(unread)
    await asyncio.wait_for(show(pipes.Writer(theirs), pipes.Writer(broken), [ONE, GAP, TWO], as_json=False), PATIENT_S)
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
    await asyncio.wait_for(showing, PATIENT_S)
    for descriptor in (ours, theirs, full):
        os.close(descriptor)


def test_words_of_a_filter_are_read() -> None:
    assert filter_of([], 1) is None
    assert filter_of([], 10) == muster.Filter(one_in=10)
    assert filter_of([], 1, 5) == muster.Filter(at_most_per_s=5)
    wanted = muster.Filter({"pair": ["EUR", "USD"], "kind": "a=b"})
    assert filter_of(["pair=EUR,USD", "kind=a=b"], 1) == wanted
    for wrong, why in [(["pair"], "NAME=VALUE"), (["=EUR"], "NAME=VALUE"), (["pair=EUR", "pair=USD"], "twice")]:
        with pytest.raises(UserError, match=why):
            filter_of(wrong, 1)


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
    assert await asyncio.wait_for(anext(lines), PATIENT_S) == [b"now"]
    os.write(theirs, b"f\n")
    assert await asyncio.wait_for(anext(lines), PATIENT_S) == [b"half"]
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
        await asyncio.wait_for(blocked, PATIENT_S)
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
    with pytest.raises(UserError, match="line 2 is too long for a message"):
        await asyncio.wait_for(anext(lines), PATIENT_S)
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


async def sent(what: pub.What) -> list[bytes]:
    client = Client()
    assert await pub.send(client, "room", lambda sent: None, what) == len(client.published) == client.flushed
    return client.published


async def test_a_text_is_published_as_it_is_written_and_with_a_count_its_places_are_filled() -> None:
    assert await sent(pub.What('{"n": {n}}')) == [b'{"n": {n}}']
    assert await sent(pub.What("{n} of {x} {{n}}", count=3)) == [b"1 of {x} {1}", b"2 of {x} {2}", b"3 of {x} {3}"]
    (one,) = await sent(pub.What("{time} {random}", count=1))
    time, number = one.decode().split()
    assert abs(datetime.now(UTC) - datetime.fromisoformat(time)) < timedelta(minutes=1)
    assert len(bytes.fromhex(number)) == 4


async def test_a_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(b"two\nlines\x00\n")
    assert await sent(pub.What(file=file)) == [b"two\nlines\x00\n"]
    file.write_bytes(bytes(65_537))
    with pytest.raises(UserError, match="picture is too long for a message"):
        await sent(pub.What(file=file))


async def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    await feed(monkeypatch, [b"%d" % number for number in range(6)])
    loop, times = asyncio.get_running_loop(), list[float]()
    began = loop.time()
    assert await pub.send(Client(), "room", lambda sent: times.append(loop.time() - began), pub.What(rate=50)) == 6
    assert all(time >= number / 50 - pub.LATE_S - 0.001 for number, time in enumerate(times)), times
    assert times[-1] >= 0.09


async def test_a_text_with_a_rate_alone_goes_on_until_a_signal() -> None:
    client, reached = Client(), asyncio.Event()
    what = pub.What("{n}", rate=1_000)
    assert what.is_endless
    step = lambda sent: reached.set() if sent == 5 else None  # noqa: E731
    sending = asyncio.create_task(pub.send(client, "room", step, what))
    await asyncio.wait_for(reached.wait(), PATIENT_S)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert client.published[:5] == [b"1", b"2", b"3", b"4", b"5"]
    assert client.flushed == len(client.published), "a signal waits for what was published before it"
