"""Delayed messages over HTTP by real processes: the routes, the typed client, and what strangers send."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from muster import Refused, Unavailable
from muster.messages import BATCH_MAX, Messages, Sent, message
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.receiver import Unreachable
from tests.faults.hooks import Hooks, hooks
from tests.faults.instance import Instance, configuration
from tests.faults.test_http import client, make_key, ready
from tests.waiting import PATIENT_S, until

PATH = "/api/v1/topics/orders/messages"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Hooks, str]]:
    """An instance with topic `orders`, its target, and a key that may all."""
    path: Path = tmp_path_factory.mktemp("messages")
    instance = Instance(
        path,
        configuration(
            database={"url": "none"},
            probes={"every_ms": 0},
            systems={"enabled": "messages,http"},
            http={"body_bytes_max": 4 << 20},
        ),
    )
    with hooks() as server, instance.running():
        done = instance.ran("topic", "create", "orders", "--callback", f"{server.url}/hook")
        assert done.returncode == 0, done.stderr
        yield instance, server, make_key(instance)


async def test_a_message_and_a_batch_are_durable_and_called_back(served: tuple[Instance, Hooks, str]) -> None:
    instance, server, key = served
    async with client(instance, **{"x-api-key": key}) as asking:
        await ready(asking)
        sent = (await asking.post(PATH, json={"data": {"order": 7}, "in_ms": 50, "id": "one"})).json()
        assert (sent["id"], sent["state"]) == ("one", "scheduled")
        again = (await asking.post(PATH, json={"data": {"order": 7}, "in_ms": 900, "id": "one"})).json()
        assert (again["due_at"], again["duplicate"]) == (sent["due_at"], True)
        other = await asking.post(PATH, json={"data": {"order": 8}, "id": "one"})
        assert (other.status_code, other.json()["code"]) == (409, "conflict")
        raw = await asking.post(f"{PATH}?in_ms=50&id=raw", content=b"\x00\x01", headers={"content-type": "image/png"})
        assert raw.status_code == 200, raw.text
        batch = [{"data": number, "in_ms": 50, "id": f"batch-{number}"} for number in range(1_000)]
        answer = await asking.post(PATH, json=batch)
        assert answer.status_code == 200
        assert [each["id"] for each in answer.json()["messages"]] == [each["id"] for each in batch]
        mixed = await asking.post(PATH, json=[{"data": 1, "id": "good"}, {"data": 1, "in_ms": -1}])
        assert mixed.status_code == 207
        assert mixed.json()["messages"][1]["problem"]["code"] == "bad_request"
        await until(lambda: {"one", "raw", "good", *(each["id"] for each in batch)} <= set(server.ids()))
        (call,) = server.of("raw")
        assert (call.body, call.kind) == (b"\x00\x01", "image/png")
        assert server.of("one")[0].body == b'{"order":7}'
        assert len(server.of("one")) == 1

        async def is_done() -> bool:
            found: dict[str, Any] = (await asking.get(f"{PATH}/one")).json()
            return bool(found["state"] == "done")

        async with asyncio.timeout(PATIENT_S):
            while not await is_done():  # noqa: ASYNC110 - what is asked is a server
                await asyncio.sleep(0.02)
        stats = (await asking.get("/api/v1/topics/orders/stats")).json()
        assert sum(minute["accepted"] for minute in stats["minutes"]) >= 1_003
        assert any(minute["lateness_p99_ms"] is not None for minute in stats["minutes"])
        lists = await asyncio.gather(*(asking.get("/api/v1/topics/orders/stats") for _ in range(32)))
        assert {each.status_code for each in lists} == {200}, "the schedule makes four lists at a time; others wait"


async def test_changes_and_reads_over_http(served: tuple[Instance, Hooks, str]) -> None:
    instance, _, key = served
    async with client(instance, **{"x-api-key": key}) as asking:
        await ready(asking)
        due = 1_000 * round(time.time() + 3_600)
        for id in ("a", "b", "c"):
            assert (await asking.post(PATH, json={"data": id, "at": due, "id": id})).json()["due_at"] == due
        assert (await asking.post(f"{PATH}/a/cancel")).json()["outcome"] == "done"
        assert (await asking.post(f"{PATH}/b/postpone", json={"by_ms": 5})).json()["due_at"] == due + 5
        moved = await asking.post(
            f"{PATH}/c/advance", json={"to": datetime.fromtimestamp(due / 1_000 - 60, UTC).isoformat()}
        )
        assert moved.json()["due_at"] == due - 60_000
        assert (await asking.post(f"{PATH}/one-that-is-not/cancel")).json()["outcome"] == "unknown"
        assert (await asking.get(f"{PATH}/a")).json()["state"] == "cancelled"
        assert (await asking.get(f"{PATH}/nobody")).status_code == 404
        found = (await asking.get(PATH, params={"states": "scheduled", "due_ms": 7_200_000})).json()
        assert [each["id"] for each in found["messages"]][:2] == ["c", "b"]
        assert found["messages"][0]["data"] == "c"
        topics = (await asking.get("/api/v1/topics")).json()
        assert [topic["name"] for topic in topics["topics"]] == ["orders"]
        assert "secret" not in json.dumps(topics)
        assert (await asking.post("/api/v1/topics/none/messages", json={"data": 1})).status_code == 404


async def test_an_idempotency_key_sends_once(served: tuple[Instance, Hooks, str]) -> None:
    instance, _, key = served
    async with client(instance, **{"x-api-key": key, "idempotency-key": "k"}) as asking:
        await ready(asking)
        first, second = [await asking.post(PATH, json={"data": 1, "in_ms": 3_600_000}) for _ in range(2)]
        assert first.json()["id"] == second.json()["id"]
        assert second.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        (PATH, b'{"data": 1, "in_ms": -1}', 400),
        (PATH, b'{"data": 1, "in_ms": 999999999999999}', 400),
        (PATH, b'{"data": 1, "in_ms": 99999999999999999999999}', 400),
        (PATH, b'{"data": 1, "in_ms": 1, "at": 1}', 400),
        (PATH, b'{"data": 1, "at": "2027-01-01T00:00:00"}', 400),
        (PATH, b'{"data": 1, "expires_at": 1}', 400),
        (PATH, b'{"data": 1, "id": "../../etc"}', 400),
        (PATH, b'{"data": 1, "id": "a b"}', 400),
        (PATH, b'{"data": 1, "id": ""}', 400),
        (PATH, '{"data": 1, "id": "ü"}'.encode(), 400),
        (PATH, b'{"data": 1, "target": "file:///etc/passwd"}', 400),
        (PATH, b'{"data": 1, "target": "user:7"}', 400),
        (PATH, b'{"data": 1, "id": "a\x00b"}', 400),
        (PATH, b'{"data": 1, "id": "a.b"}', 400),
        (PATH, b'{"data": 1, "id": "' + b"x" * 129 + b'"}', 400),
        (PATH, b'{"data": 1, "in_ms": 1e300}', 400),
        (PATH, b'{"data": 1, "in_ms": "1"}', 400),
        (PATH, b'{"data": 1, "target": "kafka:orders"}', 400),
        (PATH, b'{"data": 1, "surprise": 1}', 400),
        (PATH, b"{", 400),
        (PATH, b'{"in_ms": 1}', 400),
        (PATH, b"[" + b'{"data":1},' * 1_000 + b'{"data":1}]', 413),
        (PATH, b'{"data": "' + b"x" * 300_000 + b'"}', 413),
        (PATH, b"x" * (5 << 20), 413),
        (f"{PATH}/a%2Fb/cancel", b"", 400),
        (f"{PATH}/order-7/explode", b"", 400),
        (f"{PATH}/order-7/postpone", b"{}", 400),
        (f"{PATH}/order-7/postpone", b'{"by_ms": -5}', 400),
        (f"{PATH}/order-7/postpone", b'{"by_ms": 5, "to": 5}', 400),
    ],
)
async def test_hostile_bodies_are_refused(
    served: tuple[Instance, Hooks, str], path: str, content: bytes, status: int
) -> None:
    instance, _, key = served
    headers = {"x-api-key": key, "content-type": "application/json"}
    async with client(instance, **headers) as asking:
        await ready(asking)
        try:
            answer = await asking.post(path, content=content)
        except httpx2.WriteError:  # it was cut while it came
            assert status == 413
            return
        assert answer.status_code == status, answer.text


async def test_a_hundred_megabytes_without_a_length_are_refused_and_others_served(
    served: tuple[Instance, Hooks, str],
) -> None:
    instance, _, key = served

    async def body() -> AsyncIterator[bytes]:
        for _ in range(1_600):
            yield b" " * 65_536

    async with client(instance, **{"x-api-key": key, "content-type": "application/json"}) as asking:
        await ready(asking)
        with contextlib.suppress(httpx2.WriteError):  # it was cut while it came
            assert (await asking.post(PATH, content=body())).status_code == 413
        assert (await asking.post(PATH, json={"data": 1, "in_ms": 3_600_000})).status_code == 200


async def test_keys_open_only_their_topics(served: tuple[Instance, Hooks, str]) -> None:
    instance, _, _ = served
    async with client(instance) as nobody:
        await ready(nobody)
        assert (await nobody.post(PATH, json={"data": 1})).status_code == 401
    async with client(instance, **{"x-api-key": make_key(instance, "send:other", "show:orders")}) as foreign:
        assert (await foreign.post(PATH, json={"data": 1})).status_code == 403
        assert (await foreign.post(f"{PATH}/a/cancel")).status_code == 403
        assert (await foreign.get(PATH)).status_code == 200


async def test_strangers_at_the_ports_of_nodes_change_nothing(served: tuple[Instance, Hooks, str]) -> None:
    instance, _, _ = served
    for role in ("center", "receive", "messages-admin"):
        bind = instance.process(role).bind
        assert isinstance(bind, tuple)
        before = instance.metrics(instance.process(role).name)["messages_asked_refused"]
        async with httpx2.AsyncClient(base_url=f"http://{bind[0]}:{bind[1]}", trust_env=False) as stranger:
            with pytest.raises(httpx2.TransportError):
                await stranger.post("/insert", content=b"\x90", headers={"authorization": "Bearer x"})
        link = Link(role, lambda bind=bind: [bind], b"another token")  # type: ignore[misc]
        with pytest.raises(Unreachable, match="different secrets"):
            await link.ask("topics", None, list[Any])
        await link.close()
        after = instance.metrics(instance.process(role).name)["messages_asked_refused"]
        assert after == before + 2


def test_the_typed_client_sends_changes_and_reads(served: tuple[Instance, Hooks, str]) -> None:
    instance, _, key = served
    bind = instance.process("http").bind
    assert isinstance(bind, tuple)
    with Messages(f"http://{bind[0]}:{bind[1]}", key=key) as messages:
        sent = messages.send("orders", {"order": 8}, in_s=3_600, id="typed")
        assert sent.due_at == pytest.approx(time.time() + 3_600, abs=30)
        assert messages.postpone("orders", "typed", by_s=60).due_at == pytest.approx(sent.due_at + 60)
        found = messages.get("orders", "typed")
        assert found is not None
        assert (found.state, json.loads(found.body)) == ("scheduled", {"order": 8})
        assert messages.cancel("orders", "typed").outcome == "done"
        assert messages.cancel("orders", "typed-2").outcome == "unknown"
        assert messages.get("orders", "typed-3") is None
        many = messages.send_many("orders", [message(b"\x00", in_s=3_600), message(1, in_s=-1)])
        assert isinstance(many[0], Sent)
        assert isinstance(many[1], Refused)
        with pytest.raises(Refused, match="delay"):
            messages.send("orders", 1, in_s=-1)
        with pytest.raises(ValueError, match="too many messages in a batch"):
            messages.send_many("orders", [{}] * (BATCH_MAX + 1))
    with Messages("http://127.0.0.1:1", key=key) as nobody, pytest.raises(Unavailable):
        nobody.send("orders", 1)
