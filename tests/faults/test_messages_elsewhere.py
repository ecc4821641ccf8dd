"""Delayed messages with their schedule in a real Redis and their log in a real Kafka: by the real command, while these and
nodes die."""

import asyncio
import functools
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests import forked, strikes
from tests.faults.conftest import Make
from tests.faults.hooks import hooks
from tests.faults.instance import Instance
from tests.faults.test_messages import said, topic, with_messages
from tests.faults.test_messages_killed import LONG, Load, check, link, more
from tests.kafka import Kafka
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, until, until_asked

__all__ = ["with_messages"]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.end()


def elsewhere(with_messages: Make, redis: RedisServer, kafka: Kafka, **sections: dict[str, Any]) -> Instance:
    callbacks = {"allowed": "127.0.0.0/8", "kafka": f"kafka://{kafka.servers}"}
    return with_messages(center={"schedule": redis.url, "log": kafka.url}, callbacks=callbacks, **sections)


async def strike(instance: Instance, redis: RedisServer, dice: random.Random, older: bool) -> str:
    """Kill or stop the center, a worker or Redis; or Redis comes back older."""
    kind = dice.choice(("center", "center", "messages-worker", "redis", "redis stands", *["older"] * older))
    if kind in {"center", "messages-worker"}:
        dead = instance.kill(kind)
        await instance.back(kind, dead)
    elif kind == "redis":
        await redis.away()
        await asyncio.to_thread(redis.start)
    elif kind == "older":
        kept = await asyncio.to_thread(redis.keep)
        await asyncio.sleep(dice.uniform(0.2, 1.0))
        await asyncio.to_thread(redis.come_back_with, kept)
    else:
        with redis.standing_still():
            await asyncio.sleep(dice.uniform(0.2, 1.5))
    return {"messages-worker": "messages-worker"}.get(kind, "center")


@pytest.mark.parametrize(
    "count",
    [8, pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)])],
    ids=["short", "long"],
)
async def test_strikes_with_redis_and_kafka_lose_nothing_and_fire_nothing_early(
    with_messages: Make, redis: RedisServer, kafka: Kafka, figures: Callable[..., None], count: int
) -> None:
    dice = random.Random(1)
    instance = elsewhere(with_messages, redis, kafka)
    with hooks() as server, instance.running():
        topic(instance, server, "--timeout", "5")
        load, stop = Load(link(instance), 1), asyncio.Event()
        loading = asyncio.create_task(load.run(stop))
        struck: list[tuple[float, str]] = []
        await until(lambda: len(server.calls) > 20)
        for _ in range(count):
            at = time.time() * 1_000
            struck.append((at, await strike(instance, redis, dice, older=True)))
            assert not loading.done(), loading.result()
            await until(functools.partial(more, server, len(server.calls) + 5))
        stop.set()
        await loading
        await load.link.close()
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == 0)
        doubles = check(load, server, struck)
        figures(strikes=len(struck), accepted=len(load.due), withdrawn=len(load.withdrawn), doubles=doubles)


async def test_a_lost_redis_is_made_again_from_kafka_and_messages_go_to_topics(
    with_messages: Make, redis: RedisServer, kafka: Kafka
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    name = f"{kafka.prefix}.shipped"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENT_S)
    instance = elsewhere(with_messages, redis, kafka)
    with hooks() as server, instance.running():
        topic(instance, server)
        said(instance, "delay", "send", "orders", "kept", "--in", "1h", "--id", "kept")
        said(instance, "delay", "send", "orders", "withdrawn", "--in", "1h", "--id", "withdrawn")
        said(instance, "delay", "cancel", "withdrawn")
        said(instance, "delay", "send", "orders", "x", "--id", "to-kafka", "--target", f"kafka:{name}")
        await until_asked(lambda: said(instance, "delay", "show", "to-kafka")["state"] == "done")
        redis.said("FLUSHALL")
        await until_asked(lambda: instance.ran("delay", "show", "kept", "--json").returncode == 0)
        assert said(instance, "delay", "show", "kept")["state"] == "scheduled"
        assert said(instance, "delay", "show", "withdrawn")["state"] == "cancelled"
        assert said(instance, "delay", "advance", "kept", "--to", "now")["outcome"] == "done"
        await until(lambda: server.ids() == ["kept"])
        (center,) = instance.names("center")
        await until_asked(lambda: instance.status(center)["schedule"]["backs"] == 1)  # figures of the last second


@pytest.mark.parametrize("stands", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["killed", "stands still"])
async def test_a_center_that_waits_takes_over_and_all_centers_may_die_at_once(
    with_messages: Make, redis: RedisServer, kafka: Kafka, tmp_path: Path, figures: Callable[..., None], stands: bool
) -> None:
    instance = elsewhere(
        with_messages,
        redis,
        kafka,
        registry={"url": "embedded"},
        serve={"dir": str(tmp_path / "hosts")},
        cluster=shared(tmp_path),
    )
    with hooks() as server, instance.running(), waiting(instance, tmp_path) as other:
        topic(instance, server, "--timeout", "5")
        load, stop = Load(link(instance), 1), asyncio.Event()
        loading = asyncio.create_task(load.run(stop))
        struck: list[tuple[float, str]] = []
        seconds: dict[str, float] = {}

        async def goes_on(name: str) -> None:
            struck.append((time.time() * 1_000, "center"))
            since, count = time.monotonic(), len(server.calls)
            await until(lambda: len(server.calls) > count + 20)
            seconds[name] = round(time.monotonic() - since, 1)

        await until(lambda: len(server.calls) > 20 and has_started(tmp_path))
        if stands:
            async with instance.stopped("center"):
                await goes_on("the first one stands still")
        dead = instance.process("center").pid
        strikes.kill(dead)
        strikes.kill(other.pid)
        with waiting(instance, tmp_path):
            await goes_on("all are killed at once")
            stop.set()
            await loading
            await load.link.close()
            await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == 0)
        doubles = check(load, server, struck)
    figures(accepted=len(load.due), withdrawn=len(load.withdrawn), doubles=doubles, goes_on_after_s=seconds)


def shared(folder: Path) -> dict[str, str]:
    """What all hosts of a cluster have alike."""
    files = {name: folder / name for name in ("secret_file", "names_file", "token_file", "signing_key_file")}
    for name, file in files.items():
        file.write_text(secrets.token_hex(16 if name == "names_file" else 32))
        file.chmod(0o600)
    return {name: str(file) for name, file in files.items()}


def has_started(folder: Path) -> bool:
    """Whether the other center is there, and waits."""
    return '"started"' in (folder / "other.log").read_text()


@contextmanager
def waiting(instance: Instance, folder: Path) -> Iterator[forked.Process]:
    """Another center, on a host of its own."""
    with (folder / "other.log").open("ab") as log:
        process = instance.command("serve", "center", "--name", "other", stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
