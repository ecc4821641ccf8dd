"""The HTTP face as a process beside a real instance, while nodes and the process itself die."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from control.http import keys
from control.http.face import actions
from control.http.system import KEYS
from tests.control.http.streams import Event, Reader, stream
from tests.faults.conftest import Make
from tests.faults.instance import ROOT, Instance
from tests.waiting import until

ROOM = "sports:final"
PATH = f"/api/v1/rooms/{ROOM}/messages"
ALL = tuple(f"{action}:*" for action in actions())
END_S = 10.0


class Edge:
    """One process, and a client of it with a key for everything."""

    def __init__(self, instance: Instance, log: Path, **options: Any) -> None:
        self._log = log.open("ab")
        program = [sys.executable, str(ROOT / "tests" / "faults" / "edge.py"), str(instance.folder.path)]
        self.process = subprocess.Popen(
            [*program, json.dumps(options)], cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=self._log
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url, "the process did not start; its log is among those of the test"
        split = urlsplit(self.url)
        self.address = str(split.hostname), int(split.port or 0)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it and give its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "core" / "python")])}


Start = Callable[..., Edge]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes; all are ended."""
    with contextlib.ExitStack() as stack:

        def started(instance: Instance, **options: Any) -> Edge:
            edge = Edge(instance, tmp_path / "http.log", **options)
            stack.callback(edge.end)
            return edge

        yield started


def make_key(instance: Instance, *scopes: str) -> str:
    """A key in the file of the instance."""
    known = {action.name: action.text for action in actions().values()}
    return keys.create(instance.folder.path / KEYS, f"key-{len(scopes)}", scopes or ALL, known)[1]


def client(edge: Edge, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=edge.url, headers=headers, timeout=20, trust_env=False, verify=False)


async def ready(asking: httpx2.AsyncClient) -> None:
    """Wait until requests can be done."""
    async with asyncio.timeout(20):
        while (await asking.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - what is asked is a server
            await asyncio.sleep(0.02)


def covered(events: list[Event]) -> tuple[list[str], int]:
    """What the messages carry, and how many gaps there are."""
    return [event.data["data"] for event in events if event.name == "message"], sum(e.name == "gap" for e in events)


async def read(reader: Reader, until_text: str) -> list[Event]:
    """All events up to the message that carries this."""
    events = [await reader.message()]
    while events[-1].name != "message" or events[-1].data["data"] != until_text:
        events.append(await reader.message())
    return events


async def test_rooms_of_all_gateways_are_listed_once(make: Make, start: Start) -> None:
    instance = make(up={"gateways": 2})
    with instance.running():
        everything, reads, some_rooms = (
            make_key(instance),
            make_key(instance, "read:*"),
            make_key(instance, "rooms:sports:*", "read:x"),
        )
        edge = start(instance)
        async with (
            client(edge, **{"x-api-key": everything}) as asking,
            stream(edge.address, PATH, reads),
        ):
            await ready(asking)
            await asking.post("/api/v1/rooms/other/messages", content=b"x")
            assert (await asking.get("/api/v1/rooms/other/messages")).status_code == 200

            async def listed() -> list[str]:
                answer = (await asking.get("/api/v1/rooms")).json()
                assert (answer["truncated"], answer["partial"]) == (False, False)
                return [room["name"] for room in answer["rooms"]]

            async with asyncio.timeout(10):
                while await listed() != ["default:other", ROOM]:  # noqa: ASYNC110 - what is asked is a server
                    await asyncio.sleep(0.05)
            async with client(edge, **{"x-api-key": some_rooms}) as some:
                answer = await some.get("/api/v1/rooms")
                assert [room["name"] for room in answer.json()["rooms"]] == [ROOM]


async def test_a_token_of_muster_token_acts_as_its_user(make: Make, start: Start) -> None:
    instance = make()
    with instance.running():
        edge = start(instance)
        minted = instance.command("token", "7", "--rights", "read,publish", stdout=subprocess.PIPE)
        token = minted.communicate()[0].decode().strip()
        async with client(edge, authorization=f"Bearer {token}") as user:
            await ready(user)
            answer = await user.post(PATH, content=b"x")
            assert answer.status_code == 200, answer.text
            messages = (await user.get(PATH)).json()["messages"]
            assert [(message["sender"], message["data"]) for message in messages] == [("7", "x")]
            members = await user.get(f"/api/v1/rooms/{ROOM}/members?ids=true")
            assert members.json()["ids"] == ["7"]


@pytest.mark.parametrize("role", ["broker", "router", "gateway", "proxy"])
async def test_a_node_dies_and_what_was_acknowledged_is_read_or_a_gap(make: Make, start: Start, role: str) -> None:
    instance = make()
    with instance.running():
        key = make_key(instance)
        edge = start(instance)
        async with client(edge, **{"x-api-key": key}) as publisher, stream(edge.address, PATH, key) as reader:
            await ready(publisher)
            acked: list[str] = []
            stop = asyncio.Event()

            async def publish() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    answer = await publisher.post(PATH, content=str(number).encode())
                    if answer.status_code == 200:
                        acked.append(str(number))
                    else:
                        assert answer.json()["retryable"] is True, answer.text

            publishing = asyncio.create_task(publish())
            await until(lambda: len(acked) > 20, 10)
            dead = instance.kill(role)
            await instance.back(role, dead)
            since = len(acked)
            await until(lambda: len(acked) > since + 20, 30)
            stop.set()
            await publishing
            async with asyncio.timeout(20):
                while (await publisher.post(PATH, content=b"end")).status_code != 200:
                    pass
                events = await read(reader, "end")
    seen, gaps = covered(events)
    assert len(set(seen)) == len(seen), "a message came twice"
    missing = set(acked) - set(seen)
    assert not missing or gaps, f"{len(missing)} messages are missing without a gap"
    if role != "broker":  # whose memory held them
        assert not missing
    assert seen == [*sorted(seen[:-1], key=int), "end"]


async def test_a_process_dies_and_its_readers_go_on_at_another(make: Make, start: Start) -> None:
    instance = make()
    with instance.running():
        key = make_key(instance)
        first, second = start(instance), start(instance)
        async with client(second, **{"x-api-key": key}) as publisher:
            await ready(publisher)
            async with stream(first.address, PATH, key) as reader:
                for number in range(10):
                    assert (await publisher.post(PATH, content=str(number).encode())).status_code == 200
                events = await reader.messages(5)
                first.end(signal.SIGKILL)
            async with (
                stream(second.address, PATH, key, {"last-event-id": events[-1].id}) as reader,
                asyncio.timeout(10),
            ):
                events += await reader.messages(5)
    assert covered(events) == ([str(number) for number in range(10)], 0)


async def test_sigterm_drains(make: Make, start: Start) -> None:
    instance = make()
    with instance.running():
        key = make_key(instance)
        edge = start(instance)
        async with client(edge, **{"x-api-key": key}) as asking, stream(edge.address, PATH, key) as reader:
            await ready(asking)
            edge.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                event = await reader.message()
            assert (event.name, event.data["reason"]) == ("goodbye", "draining")
        assert await asyncio.to_thread(edge.end) == 0


async def test_the_instance_comes_back_and_requests_are_done_again(make: Make, start: Start) -> None:
    instance = make()
    with instance.running():
        key = make_key(instance)
        edge = start(instance)
        async with client(edge, **{"x-api-key": key}) as asking:
            await ready(asking)
            assert (await asking.post(PATH, content=b"before")).status_code == 200
            async with stream(edge.address, PATH, key) as reader:
                for role in ("broker", "router", "gateway", "proxy"):
                    dead = instance.kill(role)
                    await instance.back(role, dead)
                async with asyncio.timeout(30):
                    while (await asking.post(PATH, content=b"after")).status_code != 200:
                        pass
                    assert "after" in covered(await read(reader, "after"))[0]
