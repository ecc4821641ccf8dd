"""Delayed messages with their schedule in a real Redis and their log in a real Kafka: by the real command, while these and
nodes die."""

import asyncio
import functools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.conftest import Make
from tests.faults.hooks import hooks
from tests.faults.instance import Instance
from tests.faults.test_messages import said, topic, with_messages
from tests.faults.test_messages_killed import STRIKES, Load, check, link, more
from tests.kafka import Kafka
from tests.redis_server import RedisServer
from tests.waiting import until, until_asked

__all__ = ["with_messages"]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.end()


def elsewhere(with_messages: Make, redis: RedisServer, kafka: Kafka, **center: Any) -> Instance:
    keys = {"schedule": redis.url, "log": kafka.url} | center
    return with_messages(center=keys, callbacks={"allowed": "127.0.0.0/8", "kafka": f"kafka://{kafka.servers}"})


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


async def test_strikes_with_redis_and_kafka_lose_nothing_and_fire_nothing_early(
    with_messages: Make, redis: RedisServer, kafka: Kafka, figures: Callable[..., None]
) -> None:
    dice = random.Random(1)
    instance = elsewhere(with_messages, redis, kafka)
    with hooks() as server, instance.running():
        topic(instance, server, "--timeout", "2")
        load, stop = Load(link(instance), 1), asyncio.Event()
        loading = asyncio.create_task(load.run(stop))
        struck: list[tuple[float, str]] = []
        await until(lambda: len(server.calls) > 20, 30)
        for _ in range(max(8, STRIKES // 4)):
            at = time.time() * 1_000
            struck.append((at, await strike(instance, redis, dice, older=True)))
            assert not loading.done(), loading.result()
            count = len(server.calls)
            await until(functools.partial(more, server, count + 5), 60)
        stop.set()
        await loading
        await load.link.close()
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == 0, 60)
        doubles = check(load, server, struck)
        figures(strikes=len(struck), accepted=len(load.due), withdrawn=len(load.withdrawn), doubles=doubles)


async def test_a_lost_redis_is_made_again_from_kafka_and_messages_go_to_topics(
    with_messages: Make, redis: RedisServer, kafka: Kafka
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.servers, "log_level": 0})
    name = f"{kafka.prefix}.shipped"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    instance = elsewhere(with_messages, redis, kafka)
    with hooks() as server, instance.running():
        topic(instance, server)
        said(instance, "delay", "send", "orders", "kept", "--in", "1h", "--id", "kept")
        said(instance, "delay", "send", "orders", "withdrawn", "--in", "1h", "--id", "withdrawn")
        said(instance, "delay", "cancel", "withdrawn")
        said(instance, "delay", "send", "orders", "x", "--id", "to-kafka", "--target", f"kafka:{name}")
        await until_asked(lambda: said(instance, "delay", "show", "to-kafka")["state"] == "done", 20)
        redis.said("FLUSHALL")
        await until_asked(lambda: instance.ran("delay", "show", "kept", "--json").returncode == 0, 30)
        assert said(instance, "delay", "show", "kept")["state"] == "scheduled"
        assert said(instance, "delay", "show", "withdrawn")["state"] == "cancelled"
        assert said(instance, "delay", "advance", "kept", "--to", "now")["outcome"] == "done"
        await until(lambda: server.ids() == ["kept"], 20)
        (center,) = instance.names("center")
        await until_asked(lambda: instance.status(center)["schedule"]["backs"] == 1, 20)  # figures of the last second
