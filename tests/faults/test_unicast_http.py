"""Messages to users at event streams of the HTTP face, by real processes: `delivered` is what a reader has got."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import muster
from muster.presence import Presence
from tests.faults.instance import Instance
from tests.faults.test_messages import said
from tests.faults.test_messages_users import ask, state
from tests.faults.test_unicast import device, got, seen, send, token
from tests.http.streams import Event, Reader, stream
from tests.waiting import PATIENT_S, until_asked

ROOM = "/api/v1/rooms/demo/messages"
DIRECT = "/api/v1/direct"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance with presence, messages and the face."""
    text = "[database]\nurl = 'none'\n[probes]\nevery_ms = 0\n[presence]\ngrace_ms = 200\n"
    instance = Instance(tmp_path_factory.mktemp("direct"), text)
    with instance.running("--with", "presence,messages,http"):
        often = ",".join(["300ms"] * 60)
        said(instance, "topic", "create", "alerts", "--callback", "user:7", "--retries", often, "--jitter", "0")
        said(instance, "topic", "create", "brief", "--callback", "user:7", "--retries", "100ms", "--jitter", "0")
        yield instance


def face(instance: Instance) -> tuple[str, int]:
    """The address of the face."""
    url: str = said(instance, "status", "--json")["systems"]["http"]["url"]
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def opened(instance: Instance, path: str, user: int, name: str, credential: str = "") -> AsyncIterator[Reader]:
    """A stream of a user, by the token of one device: this one, or a new one."""
    credential = credential or await token(instance, user, name)
    address = await asyncio.to_thread(face, instance)
    async with stream(address, path, "", {"authorization": f"Bearer {credential}"}) as reader:
        assert (await reader.event()).data.startswith("retry:")
        await seen(instance, user, name)
        yield reader


async def next_of(reader: Reader) -> Event:
    """The next event that is no comment."""
    async with asyncio.timeout(PATIENT_S):
        return await reader.message()


async def test_a_stream_of_a_room_is_no_device_that_takes_messages(shared: Instance) -> None:
    async with opened(shared, ROOM, 21, "web"):
        assert await send(shared, 21, "hello") == (1, "not online")
        await ask(shared, "delay", "send", "brief", "x", "--target", "user:21", "--id", "unread")
        await state(shared, "brief", "unread", "dead")
        letter = await ask(shared, "delay", "dead", "show", "unread", "--topic", "brief")
        assert letter["answer"] == "not_online: user 21 is not online"


async def test_a_stream_of_direct_messages_gets_them_and_only_then_they_are_delivered(shared: Instance) -> None:
    async with opened(shared, DIRECT, 22, "web") as reader:
        assert await send(shared, 22, "hello") == (0, "delivered: web")
        event = await next_of(reader)
        assert (event.name, event.data["data"], event.id) == ("message", "hello", event.data["id"])
        await ask(shared, "delay", "send", "alerts", "ship it", "--target", "user:22", "--id", "read")
        assert (await next_of(reader)).data["data"] == "ship it"
        assert (await state(shared, "alerts", "read", "done"))["attempts"] == 1
        assert await send(shared, 22, "AP+A", "--base64") == (0, "delivered: web")
        data: dict[str, Any] = (await next_of(reader)).data
        assert (data["data"], data["encoding"]) == ("AP+A", "base64")
    await seen(shared, 22, "web")  # the session outlives its stream
    assert await send(shared, 22, "nobody reads") == (1, "not online")
    async with opened(shared, DIRECT, 22, "web") as reader:
        assert await send(shared, 22, "again") == (0, "delivered: web")
        assert (await next_of(reader)).data["data"] == "again"


async def test_a_room_and_direct_messages_of_one_device_share_its_session(shared: Instance) -> None:
    own = await token(shared, 23, "web")
    async with opened(shared, ROOM, 23, "web", own) as room, opened(shared, DIRECT, 23, "web", own) as one:
        async with opened(shared, DIRECT, 23, "web", own) as other:
            assert await send(shared, 23, "both") == (0, "delivered: web")
            assert [(await next_of(each)).data["data"] for each in (one, other)] == ["both", "both"]
        async with device(shared, 23, "phone") as phone:
            await seen(shared, 23, "phone", "web")
            assert await send(shared, 23, "all") == (0, "delivered: phone, web")
            assert await got(phone, 1) == [b"all"]
        assert (await next_of(one)).data["data"] == "all"
        done = await asyncio.to_thread(shared.ran, "pub", "demo", stdin=b"to the room\n")
        assert done.returncode == 0
        assert (await next_of(room)).data["data"] == "to the room"


async def test_a_reader_that_takes_no_bytes_has_nothing_delivered(shared: Instance) -> None:
    credential = await token(shared, 24, "web")
    address = await asyncio.to_thread(face, shared)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        deaf.connect(address)
        head = f"GET {DIRECT} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
        deaf.sendall(f"{head}authorization: Bearer {credential}\r\n\r\n".encode())
        await seen(shared, 24, "web")
        delivered, count = 0, 0
        async with asyncio.timeout(PATIENT_S):
            while True:  # until the window of the socket is full
                code, _ = await send(shared, 24, "x" * 900, "--expires", "1")
                if code:
                    break
                delivered += 1
        await asyncio.to_thread(deaf.settimeout, 1.0)
        data = b""
        with contextlib.suppress(TimeoutError):
            while chunk := await asyncio.to_thread(deaf.recv, 65_536):
                data += chunk
        count = data.count(b"x" * 900)
    assert delivered <= count, "each that was told as delivered had left"
    await until_asked(lambda: said(shared, "status", "--json") is not None, PATIENT_S)


async def test_a_stream_of_direct_messages_is_a_users(shared: Instance) -> None:
    key = json.loads(
        (await asyncio.to_thread(shared.ran, "key", "create", "all", "--scope", "read:*", "--json")).stdout
    )
    address = await asyncio.to_thread(face, shared)
    publisher = await token(shared, 25, "web", "publish")
    for headers, status in (
        ({"x-api-key": key["key"]}, b" 403 "),
        ({"authorization": f"Bearer {publisher}"}, b" 403 "),
        ({}, b" 401 "),
    ):
        reader, writer = await asyncio.open_connection(*address)
        lines = {"host": "localhost", "accept": "text/event-stream", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"GET {DIRECT} HTTP/1.1\r\n{head}\r\n".encode())
        assert status in await reader.readline(), headers
        writer.close()


async def test_a_key_ends_the_sessions_of_its_users_alone(shared: Instance) -> None:
    made = json.loads(
        (await asyncio.to_thread(shared.ran, "key", "create", "ops", "--scope", "end:61", "--json")).stdout
    )
    host, port = await asyncio.to_thread(face, shared)
    async with device(shared, 61, "phone") as phone, device(shared, 61, "laptop"), device(shared, 62, "phone"):
        await seen(shared, 61, "phone", "laptop")
        await seen(shared, 62, "phone")
        with Presence(f"http://{host}:{port}", key=made["key"]) as presence:
            with pytest.raises(muster.Refused) as told:
                await asyncio.to_thread(presence.end, [61, 62])
            assert told.value.code == "not_allowed"
            (sent,) = await asyncio.to_thread(presence.end, [61], device="phone")
            assert (sent.user, sent.devices) == (61, (muster.DeviceResult("phone", "ended"),))
        with pytest.raises(muster.Refused) as told:
            await got(phone, 1)
        assert told.value.code == "ended"
        await seen(shared, 61, "laptop")
        await seen(shared, 62, "phone")
