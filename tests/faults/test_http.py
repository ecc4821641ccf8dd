"""The HTTP face as a process beside a real instance, while nodes and the process itself die."""

import asyncio
import json
import signal
import subprocess
from typing import Any

import httpx2
import pytest

from muster_server.plane.systems import actions
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.http.streams import Event, Reader, stream
from tests.waiting import PATIENT_S, until

ROOM = "sports:final"
PATH = f"/api/v1/rooms/{ROOM}/messages"
ALL = tuple(f"{action}:*" for action in actions())


def address(instance: Instance) -> tuple[str, int]:
    """Where its HTTP face listens."""
    bind = instance.process("http").bind
    assert isinstance(bind, tuple)
    return bind


def make_key(instance: Instance, *scopes: str) -> str:
    """A key in the file of the instance."""
    known = {action.name: action.text for action in actions().values()}
    return keys.create(instance.folder.path / KEYS, f"key-{len(scopes)}", scopes or ALL, known)[1]


def client(instance: Instance, **headers: str) -> httpx2.AsyncClient:
    host, port = address(instance)
    return httpx2.AsyncClient(
        base_url=f"http://{host}:{port}", headers=headers, timeout=PATIENT_S, trust_env=False, verify=False
    )


@pytest.fixture
def with_http(make: Make) -> Make:
    """As `make`, with the HTTP face."""

    def made(**sections: dict[str, Any]) -> Instance:
        return make(**{"systems": {"enabled": "http"}} | sections)

    return made


async def ready(asking: httpx2.AsyncClient) -> None:
    """Wait until requests can be done."""
    async with asyncio.timeout(PATIENT_S):
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


async def test_rooms_of_all_gateways_are_listed_once(with_http: Make) -> None:
    instance = with_http(up={"gateways": 2})
    with instance.running():
        everything, reads, some_rooms = (
            make_key(instance),
            make_key(instance, "read:*"),
            make_key(instance, "rooms:sports:*", "read:x"),
        )
        async with (
            client(instance, **{"x-api-key": everything}) as asking,
            stream(address(instance), PATH, reads),
        ):
            await ready(asking)
            await asking.post("/api/v1/rooms/other/messages", content=b"x")
            assert (await asking.get("/api/v1/rooms/other/messages")).status_code == 200

            async def listed() -> list[str]:
                answer = (await asking.get("/api/v1/rooms")).json()
                assert (answer["truncated"], answer["partial"]) == (False, False)
                return [room["name"] for room in answer["rooms"]]

            async with asyncio.timeout(PATIENT_S):
                while await listed() != ["default:other", ROOM]:  # noqa: ASYNC110 - what is asked is a server
                    await asyncio.sleep(0.05)
            async with client(instance, **{"x-api-key": some_rooms}) as some:
                answer = await some.get("/api/v1/rooms")
                assert [room["name"] for room in answer.json()["rooms"]] == [ROOM]


async def test_a_token_of_muster_token_acts_as_its_user(with_http: Make) -> None:
    instance = with_http()
    with instance.running():
        token = instance.ran("token", "7", "--rights", "read,publish").stdout.decode().strip()
        async with client(instance, authorization=f"Bearer {token}") as user:
            await ready(user)
            answer = await user.post(PATH, content=b"x")
            assert answer.status_code == 200, answer.text
            messages = (await user.get(PATH)).json()["messages"]
            assert [(message["sender"], message["data"]) for message in messages] == [("7", "x")]
            members = await user.get(f"/api/v1/rooms/{ROOM}/members?ids=true")
            assert members.json()["ids"] == ["7"]


@pytest.mark.parametrize("role", ["broker", "router", "gateway", "proxy"])
async def test_a_node_dies_and_what_was_acknowledged_is_read_or_a_gap(with_http: Make, role: str) -> None:
    instance = with_http(up=APART)
    with instance.running():
        key = make_key(instance)
        async with client(instance, **{"x-api-key": key}) as publisher, stream(address(instance), PATH, key) as reader:
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
            await until(lambda: len(acked) > 20)
            await instance.renew(role)
            since = len(acked)
            await until(lambda: len(acked) > since + 20)
            stop.set()
            await publishing
            async with asyncio.timeout(PATIENT_S):
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


async def test_the_process_dies_and_its_readers_go_on(with_http: Make) -> None:
    instance = with_http()
    with instance.running():
        key = make_key(instance)
        where = address(instance)
        async with client(instance, **{"x-api-key": key}) as publisher:
            await ready(publisher)
            async with stream(where, PATH, key) as reader:
                for number in range(10):
                    assert (await publisher.post(PATH, content=str(number).encode())).status_code == 200
                events = await reader.messages(5)
                dead = instance.kill("http")
            await instance.back("http", dead)
            assert address(instance) == where
            async with stream(where, PATH, key, {"last-event-id": events[-1].id}) as reader, asyncio.timeout(PATIENT_S):
                events += await reader.messages(5)
    assert covered(events) == ([str(number) for number in range(10)], 0)


async def test_the_end_of_the_instance_says_goodbye(with_http: Make) -> None:
    instance = with_http()
    with instance.running() as up:
        key = make_key(instance)
        async with client(instance, **{"x-api-key": key}) as asking:
            await ready(asking)
            async with stream(address(instance), PATH, key) as reader, asyncio.timeout(PATIENT_S):
                up.send_signal(signal.SIGINT)
                event = await reader.message()
    assert (event.name, event.data["reason"]) == ("goodbye", "draining")
    assert up.returncode == 0


async def test_operators_see_it_as_any_other_node(with_http: Make) -> None:
    instance = with_http()
    with instance.running():
        made = instance.command("key", "create", "web", "--scope", "publish:*", stdout=subprocess.PIPE)
        key = made.communicate()[0].decode().strip()
        async with client(instance, **{"x-api-key": key}) as publisher:
            await ready(publisher)
            assert (await publisher.post(PATH, content=b"x")).status_code == 200
        said = instance.command("status", "--json", stdout=subprocess.PIPE)
        systems = json.loads(said.communicate()[0])["systems"]
        host, port = address(instance)
        assert systems["http"]["url"] == f"http://{host}:{port}"
        status = instance.status("http")
        assert (status["state"], status["keys"], status["url"]) == ("ready", 1, f"http://{host}:{port}")
        metrics = instance.metrics("http")
        assert metrics['http_messages{outcome="published"}'] == 1
        assert metrics["ready"] == 1


async def test_the_instance_comes_back_and_requests_are_done_again(with_http: Make) -> None:
    instance = with_http()
    with instance.running():
        key = make_key(instance)
        async with client(instance, **{"x-api-key": key}) as asking:
            await ready(asking)
            assert (await asking.post(PATH, content=b"before")).status_code == 200
            async with stream(address(instance), PATH, key) as reader:
                for role in ("broker", "router", "gateway", "proxy"):
                    await instance.renew(role)
                async with asyncio.timeout(PATIENT_S):
                    while (await asking.post(PATH, content=b"after")).status_code != 200:
                        pass
                    assert "after" in covered(await read(reader, "after"))[0]
