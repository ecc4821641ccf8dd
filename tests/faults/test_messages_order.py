"""Messages of one key by the real command and real processes: one after another, while targets fail and nodes die."""

import random
import threading
import time
from collections import defaultdict

from tests.faults.conftest import Make
from tests.faults.hooks import Handler, Hooks, hooks
from tests.faults.test_http import client, make_key, ready
from tests.faults.test_messages import said, with_messages
from tests.waiting import PATIENT_S, until, until_asked

__all__ = ["with_messages"]

KEYS, EACH = 20, 15


async def called(server: Hooks, count: int) -> None:
    """At least `count` messages were called back."""
    await until(lambda: len(set(server.ids())) >= count)


async def test_messages_of_a_key_come_in_order_though_targets_fail_and_nodes_die(with_messages: Make) -> None:
    dice, lock = random.Random(11), threading.Lock()

    def fails_at_times(handler: Handler) -> None:
        with lock:
            good = dice.random() < 0.7
        handler.say(204 if good else 500)

    instance = with_messages(systems={"enabled": "messages,http"})
    with hooks(fails_at_times) as server, instance.running():
        retries = ",".join(["20ms"] * 50)
        words = ("--callback", f"{server.url}/", "--per-key", "1", "--retries", retries, "--jitter", "0")
        said(instance, "topic", "create", "orders", *words)
        async with client(instance, **{"x-api-key": make_key(instance)}) as asking:
            await ready(asking)
            at = time.time_ns() // 1_000_000 + 1_000
            some = [
                {"data": n, "id": f"{key}-{n}", "key": f"key-{key}", "at": at}
                for n in range(EACH)
                for key in range(KEYS)
            ]
            answer = await asking.post("/api/v1/topics/orders/messages", json=some)
            assert answer.status_code == 200, answer.text
            assert {each["due_at"] - at for each in answer.json()["messages"]} == set(range(EACH))
        for role in ("messages-worker", "center", "messages-worker"):
            await called(server, min(len(set(server.ids())) + 20, KEYS * EACH))
            await instance.back(role, instance.kill(role))
        await called(server, KEYS * EACH)
        await until_asked(lambda: said(instance, "topic", "show", "orders")["pending"] == 0, PATIENT_S)
        assert said(instance, "topic", "show", "orders")["dead"] == 0
        numbers: dict[str, list[int]] = defaultdict(list)
        for id in server.ids():
            key, _, number = id.partition("-")
            numbers[key].append(int(number))
        assert len(numbers) == KEYS
        for key, order in numbers.items():
            assert order == sorted(order), f"key {key}: {order}"
            assert set(order) == set(range(EACH)), key
