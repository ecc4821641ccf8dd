"""Targets that misbehave: each harms its own topic alone, and others' messages are as late as without it."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Make
from tests.faults.hooks import Called, Handler, Hooks, hooks
from tests.faults.instance import Instance
from tests.faults.test_http import client, make_key, ready
from tests.faults.test_messages import said, with_messages
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, until, until_asked

__all__ = ["with_messages"]

CHUNK = b"x" * 65_536
GIGABYTE = 1 << 30


def error(handler: Handler) -> None:
    handler.say(500, b"out of order")


def slow(handler: Handler) -> None:
    time.sleep(5.0)  # longer than the topic's timeout
    with contextlib.suppress(OSError):
        handler.say(200)


def drip(handler: Handler) -> None:
    with contextlib.suppress(OSError):
        for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-long: yes\r\n\r\n":
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.2)


def closes(handler: Handler) -> None:
    handler.close_connection = True


def redirects(handler: Handler) -> None:
    handler.say(307, location="http://169.254.169.254/latest/meta-data")


def endless(handler: Handler) -> None:
    handler.send_response(500)
    handler.send_header("content-length", str(GIGABYTE))
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(GIGABYTE // len(CHUNK)):
            handler.wfile.write(CHUNK)
    handler.close_connection = True


BAD: dict[str, Callable[[Handler], None]] = {
    "error": error,
    "slow": slow,
    "drip": drip,
    "closes": closes,
    "redirects": redirects,
    "endless": endless,
}


def lateness(server: Hooks, due: dict[str, int]) -> list[float]:
    """In ms, of the first callbacks of these messages."""
    first: dict[str, Called] = {}
    for call in server.calls:
        first.setdefault(call.id, call)
    return [first[id].at - at for id, at in due.items()]


def dead(instance: Instance, name: str) -> list[Any]:
    """The dead letters of a topic."""
    letters: list[Any] = said(instance, "delay", "dead", "ls", name, "--limit", "1000")
    return letters


async def test_bad_targets_hold_up_no_other(with_messages: Make, figures: Callable[..., None]) -> None:
    instance = with_messages(systems={"enabled": "messages,http"}, http={"body_bytes_max": 4 << 20})
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(hooks())
        bad = {name: stack.enter_context(hooks(answer)) for name, answer in BAD.items()}
        stack.enter_context(instance.running())
        for name, server in {"good": good, **bad}.items():
            said(
                instance,
                "topic",
                "create",
                name,
                "--callback",
                f"{server.url}/",
                "--timeout",
                "2",
                "--retries",
                "none",
            )
        async with client(instance, **{"x-api-key": make_key(instance)}) as asking:
            await ready(asking)

            async def wave(mark: str, among: list[str]) -> dict[str, int]:
                """Messages of the good topic over two seconds, and as many to each of these."""
                at = time.time_ns() // 1_000_000 + 1_500
                for topic in among:
                    some: list[dict[str, Any]] = [
                        {"data": 1, "at": at + 10 * k, "id": f"{mark}-{k}"} for k in range(200)
                    ]
                    answer = await asking.post(f"/api/v1/topics/{topic}/messages", json=some)
                    assert answer.status_code == 200, answer.text
                due = {f"{mark}-{k}": at + 10 * k for k in range(200)}
                await until(lambda: due.keys() <= set(good.ids()))
                return due

            alone = lateness(good, await wave("alone", ["good"]))
            beside = lateness(good, await wave("beside", [*BAD, "good"]))
        assert min(alone + beside) >= 0, "one was early"
        before, after = statistics.quantiles(alone, n=100), statistics.quantiles(beside, n=100)
        figures(alone_p50=before[49], alone_p99=before[98], beside_p50=after[49], beside_p99=after[98])
        # The bad servers run in threads of this same process, on two cores: a bound, not a figure.
        assert after[49] <= before[49] + 250
        assert after[98] <= before[98] + 2_000
        instance.sample_memory()
        assert instance.peak.rss["messages-worker"] < 400 << 20, "a target's gigabyte stays with the target"

        def some_died() -> bool:
            counts = {name: len(dead(instance, name)) for name in BAD}
            return all(count >= 5 for count in counts.values())

        await until_asked(some_died, PATIENT_S, 1.0)
        for name in BAD:
            waiting = said(instance, "delay", "ls", name)["matching"]
            letters = dead(instance, name)
            # A breaker holds the others back: they wait, and are lost nowhere.
            assert len(letters) <= 200 <= len(letters) + waiting + 64, name
        assert {letter["status"] for letter in dead(instance, "redirects")} == {307}


async def posted(instance: Instance, key: str, topic: str, ids: list[str]) -> None:
    """Send these messages at once."""
    async with client(instance, **{"x-api-key": key}) as asking:
        await ready(asking)
        some = [{"data": 1, "id": id} for id in ids]
        answer = await asking.post(f"/api/v1/topics/{topic}/messages", json=some)
        assert answer.status_code == 200, answer.text


async def test_subscribers_get_each_message_by_their_own_rules_over_deaths(with_messages: Make) -> None:
    instance = with_messages(systems={"enabled": "messages,http"})
    count = 500
    with hooks() as mail, hooks(error) as bills, instance.running():
        # A claim that runs out is an attempt: mail has some, as its worker and its center die.
        for name, server, retries in (("mail", mail, "100ms,100ms,100ms"), ("bills", bills, "none")):
            said(instance, "topic", "create", name, "--callback", f"{server.url}/", "--retries", retries)
        said(instance, "topic", "create", "jobs", "--callback", "pull:")
        made = instance.ran("topic", "create", "paid", "--callback", "topics:mail,bills,jobs")
        assert (made.returncode, made.stdout) == (0, b""), "no secret signs anything"
        assert b"its messages go to mail, bills, jobs" in made.stderr
        await posted(instance, make_key(instance), "paid", [str(k) for k in range(count)])
        for role in ("messages-worker", "center"):
            await instance.back(role, instance.kill(role))
        await until(lambda: {f"paid:{k}" for k in range(count)} == set(mail.ids()))

        def shown(name: str) -> tuple[int, int]:
            state = said(instance, "topic", "show", name)
            return state["pending"], state["dead"]

        await until_asked(lambda: shown("paid") == (0, 0), PATIENT_S)
        await until_asked(lambda: shown("jobs") == (count, 0), PATIENT_S)
        await until_asked(lambda: sum(shown("bills")) == count, PATIENT_S)
        assert shown("bills")[1] > 0, "its target refuses all"
        await until_asked(lambda: shown("mail") == (0, 0), PATIENT_S)
        refused = instance.ran("topic", "rm", "mail")
        assert refused.returncode == 1
        assert b"topic mail subscribes to topic paid" in refused.stderr


async def test_a_target_gets_no_more_at_once_than_the_concurrency_of_its_topic(with_messages: Make) -> None:
    now = most = 0
    lock = threading.Lock()

    def busy(handler: Handler) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        handler.say(204)

    instance = with_messages(systems={"enabled": "messages,http"})
    with hooks(busy) as server, instance.running():
        said(instance, "topic", "create", "orders", "--callback", f"{server.url}/", "--concurrency", "2")
        key = make_key(instance)
        await posted(instance, key, "orders", [str(k) for k in range(60)])
        await until(lambda: len(set(server.ids())) == 60)
        assert most == 2
        said(instance, "topic", "change", "orders", "--concurrency", "0", "--rate", "20")
        assert b"at most 20 a second" in instance.ran("topic", "show", "orders").stdout
        await posted(instance, key, "orders", [f"x{k}" for k in range(60)])
        await until(lambda: len(set(server.ids())) == 120)
        calls = sorted(call.at for call in server.calls if call.id.startswith("x"))
        # A second's worth at once, and 20 a second after it, by the center's clock: a callback may be a little late.
        assert calls[-1] - calls[0] > 1_500


@pytest.mark.parametrize("store", ["embedded", "redis"])
async def test_a_key_gets_no_more_than_its_rate_though_the_center_is_killed(
    with_messages: Make, store: str, tmp_path: Path
) -> None:
    rate, each = 5, 20
    with contextlib.ExitStack() as stack:
        center = {}
        if store == "redis":
            redis = RedisServer(tmp_path / "redis").start()
            stack.callback(redis.end)
            center["schedule"] = redis.url
        instance = with_messages(systems={"enabled": "messages,http"}, center=center)
        server = stack.enter_context(hooks())
        stack.enter_context(instance.running())
        said(instance, "topic", "create", "orders", "--callback", f"{server.url}/", "--rate-per-key", str(rate))
        assert b"at most 5 a second" in instance.ran("topic", "show", "orders").stdout
        async with client(instance, **{"x-api-key": make_key(instance)}) as asking:
            await ready(asking)
            some = [{"data": n, "id": f"{key}-{n}", "key": key} for n in range(each) for key in ("a", "b")]
            assert (await asking.post("/api/v1/topics/orders/messages", json=some)).status_code == 200
        await until(lambda: len(set(server.ids())) >= 12)
        await instance.back("center", instance.kill("center"))
        await until(lambda: len(set(server.ids())) == 2 * each)
        for key in ("a", "b"):
            calls = sorted(call.at for call in server.calls if call.id.startswith(key))
            # At once after the start, and again after the kill; what was under way then comes twice.
            assert calls[-1] - calls[0] > 1_000 * (each - 3 * rate) / rate, key
