"""Presence and unicast as a whole: on servers of others, while every node restarts, over lossy links with nodes killed."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

import muster
from muster.presence import Presence, Sent
from muster_server.plane.auth import mint
from muster_server.plane.systems import actions
from muster_server.plane.trust import signing_secrets
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS
from tests import strikes
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.conftest import Make
from tests.faults.hosts import Hosts
from tests.faults.instance import Instance
from tests.kafka import Kafka
from tests.presence.feed import changes, followed
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, until_asked

MESSAGES = int(os.environ.get("MUSTERTEST_MESSAGES", "50000"))
STAYING = range(100, 112)
ROAMING = range(200, 208)


def token(instance: Instance, user: int, device: str | None = "phone") -> str:
    """A token that names a user and a device, as `muster token` makes it."""
    secret = signing_secrets(str(instance.folder.jwt_secret))[0]
    return mint(secret, user, ["read"], time.time(), 3_600.0, device=device)


def who(instance: Instance, *words: str) -> list[dict[str, Any]]:
    """The answer of `muster presence who`; nothing where it is refused."""
    done = instance.ran("presence", "who", *words, "--json", seconds=PATIENT_S)
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


# ---- Servers of others -----------------------------------------------------------------------------------------------


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """A Redis for each site."""
    made = [RedisServer(tmp_path / f"redis-{site}", appendonly=False).start() for site in (1, 2)]
    yield made
    for each in made:
        each.end()


async def test_the_commands_work_on_redis_kafka_and_zookeeper_of_others(
    make: Make, stores: list[RedisServer], kafka: Kafka, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    instance = make(presence={"grace_ms": 300})
    redis = ",".join(each.url for each in stores)
    words = ["--sites", "2", "--writers", "2,3", "--redis", redis, "--log", kafka.url, "--registry", zookeeper.url]
    with instance.running("--with", "presence,http", *words):
        # A shard that starts meanwhile would never hear of a user who came and went.
        await until_asked(lambda: instance.ran("presence", "stats").returncode == 0, PATIENT_S)
        stats = json.loads(instance.ran("presence", "stats", "--json").stdout)
        assert [(each["site"], each["shard"], each["shards"]) for each in stats] == [
            (1, 0, 2),
            (1, 1, 2),
            (2, 0, 3),
            (2, 1, 3),
            (2, 2, 3),
        ]
        file = tmp_path / "phone.jwt"
        file.write_bytes(instance.ran("token", "7", "--device", "phone").stdout)
        watching = instance.command("presence", "watch", "7", "8", "--json", stdout=-1, stderr=-1)
        member = instance.command("sub", "demo", "--token-file", str(file), stdout=-1, stderr=-1)
        try:
            for site in ("1", "2"):
                await until_asked(partial(sees, instance, site, "phone"), PATIENT_S)
            ids = tmp_path / "ids.txt"
            ids.write_text("".join(f"{user}\n" for user in range(1_500)))
            found = who(instance, "--file", str(ids))
            assert [each["user"] for each in found] == [str(user) for user in range(1_500)]
            assert [each["user"] for each in found if each["online"]] == ["7"]
            sent = instance.ran("send", "7", stdin=b"hello\n")
            assert (sent.returncode, sent.stdout) == (0, b"delivered: phone\n")
            assert instance.ran("send", "8", stdin=b"hello\n").returncode == 1
            await _keys(instance)
            async with muster.connect(instance.folder.path, proxies=[], token=token(instance, 9, None)):
                await until_asked(lambda: [len(each["devices"]) for each in who(instance, "9")] == [1], PATIENT_S)
        finally:
            member.send_signal(signal.SIGINT)
            _, said = member.communicate(timeout=PATIENT_S)
        assert b"data=hello" in said
        for site in ("1", "2"):
            await until_asked(partial(sees, instance, site), PATIENT_S)
        await until_asked(lambda: instance.ran("presence", "stats").returncode == 0, PATIENT_S)
        await until_asked(partial(relayed, instance, 8), PATIENT_S)  # two users come and go at two sites
        watching.send_signal(signal.SIGINT)
        told, _ = watching.communicate(timeout=PATIENT_S)
    for place, shards in ((1, 2), (2, 3)):
        logged = await changes(tmp_path, place, shards, kafka.url)
        assert [each["state"] for each in logged if each["user"] == "7"] == ["online", "offline"]
        assert {each["user"] for each in logged} == {"7", "9"}, "a token without a device is a device as well"
    assert [json.loads(line)["state"] for line in told.splitlines()][-1:] == ["offline"]
    assert all(each.said("DBSIZE") > 0 for each in stores)


async def _keys(instance: Instance) -> None:
    """API keys open what they are for."""
    known = {action.name: action.text for action in actions().values()}
    scopes = ("unicast:7", "presence:7")
    _, key = await asyncio.to_thread(keys.create, instance.folder.path / KEYS, "web", scopes, known)
    others = [
        (path, (await asyncio.to_thread(keys.create, instance.folder.path / KEYS, path[1:], (scope,), known))[1])
        for scope, path in (("presence:*", "/send"), ("unicast:*", "/presence"))
    ]
    host, port = instance.process("http").bind or ("", 0)
    asked = {"users": ["7"], "data": "over http", "expires": 2}
    async with httpx2.AsyncClient(
        base_url=f"http://{host}:{port}/api/v1", timeout=PATIENT_S, trust_env=False
    ) as client:

        async def status(key: str | None, path: str, body: dict[str, Any]) -> int:
            answer = await client.post(path, json=body, headers={} if key is None else {"x-api-key": key})
            return int(answer.status_code)

        for wrong in (None, "mk_nobody", key[:-1]):
            assert [await status(wrong, path, asked) for path in ("/send", "/presence")] == [401, 401]
        assert await status(key, "/send", asked | {"users": ["7", "8"]}) == 403
        assert await status(key, "/presence", {"users": ["70"]}) == 403
        assert await status(key, "/send", asked | {"data": "x" * 961}) in {400, 413}
        for path, other in others:
            body = asked if path == "/send" else {"users": ["7"]}
            assert await status(other, path, body) == 403, "a key of the other route"
        said = await client.post("/send", json=asked | {"users": ["7", "7"]}, headers={"x-api-key": key})
        assert said.json() == {"users": [{"user": "7", "devices": [{"device": "phone", "outcome": "delivered"}]}]}
    await asyncio.to_thread(_typed, f"http://{host}:{port}", key)


def _typed(url: str, key: str) -> None:
    """The typed client does the same."""
    with Presence(url, key=key) as presence:
        (user,) = presence.who([7])
        assert [device.device for device in user.devices] == ["phone"]
        assert presence.send([7], "typed") == [Sent(7, (muster.DeviceResult("phone", "delivered"),), None)]
        assert presence.send([7], "typed", device="watch", expires=1.0) == [
            Sent(7, (muster.DeviceResult("watch", "not_online"),), None)
        ]
        with pytest.raises(muster.Refused) as told:
            presence.send([7, 8], "typed")
        assert told.value.code == "not_allowed"


def sees(instance: Instance, site: str, *devices: str) -> bool:
    """Whether these are the devices of user 7 at a site."""
    found = who(instance, "7", "--site", site)
    return [[device["device"] for device in each["devices"]] for each in found] == [list(devices)]


def relayed(instance: Instance, changes: int) -> bool:
    """Whether writers have put so many changes into the log."""
    figures = [instance.metrics(name)["presence_changes_published"] for name in instance.names("online-writer")]
    return sum(figures) >= changes


async def test_a_redis_that_is_none_is_named_at_the_start(make: Make) -> None:
    instance = make()
    for text, why in (("redis://a:1,redis://b:1,redis://c:1", b"stores of 3 sites"), ("http://a:1", b"redis")):
        done = instance.ran("up", "--with", "presence", "--redis", text, "--for", "1")
        assert done.returncode == 78, done.stderr
        assert why in done.stderr
        assert b"Traceback" not in done.stderr


SERVED = ("router", "broker", "gateway", "proxy", "online-proxy", "online-writer", "online-reader", "unicast")


async def test_served_nodes_tell_where_a_user_is_and_reach_it(
    tmp_path: Path, stores: list[RedisServer], zookeeper: ZooKeeper
) -> None:
    hosts = Hosts(tmp_path, f"{zookeeper.url}/served")
    with hosts.running():
        await _served(hosts, stores)


async def _served(hosts: Hosts, stores: list[RedisServer]) -> None:
    sites = {"redis": ",".join(each.url for each in stores), "sites": 2, "grace_ms": 200}
    cluster = hosts.sections["cluster"] | {"jwt_secret_file": str(hosts.path / "jwt.secret")}
    hosts.write(systems={"enabled": "presence"}, presence=sites, cluster=cluster)
    nodes = [hosts.start(role, role) for role in SERVED[:4]]
    for site in ("1", "2"):
        nodes += [hosts.start(f"{role}-{site}", role, MUSTER_PRESENCE__SITE=site) for role in SERVED[4:]]
    await hosts.serve(*nodes)
    secret = (hosts.path / "jwt.secret").read_bytes()
    phone = mint(secret, 7, ["read"], time.time(), 600.0, device="phone")
    gateway = dataclasses.replace(hosts.address(), proxies=(), token=phone.encode())
    async with muster.connect(gateway, timeout=PATIENT_S) as client:
        for site in ("1", "2"):
            await until_served(hosts, "presence", "who", "7", "--site", site, "--json", holds='"device":"phone"')
        code, said, _ = await hosts.asked("presence", "stats", "--json")
        assert (code, [(each["site"], each["users"]) for each in json.loads(said)]) == (0, [(1, 1), (2, 1)])
        sending = await hosts.asking("send", "7", stdin=-1)
        assert await sending.communicate(b"hello\n") == (b"delivered: phone\n", b"")
        async with asyncio.timeout(PATIENT_S):
            assert (await anext(aiter(client.direct()))).data == b"hello"
    assert [await node.end() for node in nodes] == [0] * len(nodes)


async def until_served(hosts: Hosts, *words: str, holds: str) -> None:
    """Ask until the answer has this."""
    said: tuple[int, str, str] | None = None
    try:
        async with asyncio.timeout(PATIENT_S):
            while said is None or holds not in said[1]:
                said = await hosts.asked(*words)
    except TimeoutError:
        raise AssertionError(said) from None


# ---- Every node restarts ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def online(instance: Instance, users: Sequence[int]) -> AsyncIterator[list[muster.Client]]:
    """A client of each user, with one device."""
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                muster.connect(instance.folder.path, proxies=[], token=token(instance, user), timeout=PATIENT_S)
            )
            for user in users
        ]


async def roam(instance: Instance, user: int) -> None:
    """A user who comes and goes."""
    while True:
        with contextlib.suppress(muster.MusterError):
            async with muster.connect(instance.folder.path, proxies=[], token=token(instance, user)):
                await asyncio.sleep(0.2)
        await asyncio.sleep(0.1)


async def test_every_node_of_two_sites_restarts_and_nobody_who_stays_is_told_offline(make: Make) -> None:
    await _restarted(make, rounds=1, ends=[Instance.terminate])


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_every_node_restarts_many_times_under_load(make: Make) -> None:
    await _restarted(make, rounds=10, ends=[Instance.terminate, Instance.kill])


async def _restarted(make: Make, rounds: int, ends: Sequence[Callable[[Instance, str], int]]) -> None:
    instance = make(up={"gateways": 2}, presence={"grace_ms": 5_000})
    with instance.running("--with", "presence"):
        async with online(instance, STAYING):
            users = [str(user) for user in STAYING]
            for site in ("1", "2"):
                await until_asked(partial(present, instance, users, site), PATIENT_S)
            roaming = [asyncio.create_task(roam(instance, user)) for user in ROAMING]
            for number in range(rounds):
                for name in instance.names():
                    await instance.renew(name, ends[number % len(ends)])
            for task in roaming:
                task.cancel()
            await asyncio.gather(*roaming, return_exceptions=True)
            for site in ("1", "2"):
                await until_asked(partial(present, instance, users, site), PATIENT_S)
            await asyncio.sleep(6.0)  # the grace time of those that roamed, and the relay
            for name in instance.names("online-writer"):
                await until_asked(partial(published, instance, name), PATIENT_S)
                strikes.kill(instance.process(name).pid)
        instance.end()
    for number in (1, 2):
        told = await changes(instance.folder.path, number)
        stayed = [each for each in told if int(each["user"]) in STAYING and each["state"] == "offline"]
        assert not stayed, stayed
        assert {user for user, _ in followed(told)} >= set(STAYING)


def published(instance: Instance, name: str) -> bool:
    """Whether a writer's changes are all in its log."""
    return instance.metrics(name)["presence_unpublished"] == 0


def present(instance: Instance, users: Sequence[str], site: str) -> bool:
    """Whether a site has all of them online."""
    found = who(instance, *users, "--site", site)
    return bool(found) and all(each["online"] for each in found)


# ---- Messages to users over lossy links ------------------------------------------------------------------------------


async def test_each_message_reaches_each_device_once_or_is_reported(make: Make, figures: Callable[..., None]) -> None:
    await _messages(make, figures, 1_000, at_once=64)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_fifty_thousand_messages_reach_each_device_once_or_are_reported(
    make: Make, figures: Callable[..., None]
) -> None:
    await _messages(make, figures, MESSAGES, at_once=128)


async def _messages(make: Make, figures: Callable[..., None], count: int, at_once: int) -> None:
    """Messages by one sender to two devices of each user, while a gateway, a proxy and a unicast service are killed."""
    instance = make(
        up={"gateways": 2, "proxies": 2},
        presence={"grace_ms": 500, "lease_ms": 3_000},
        faults={"loss": 0.05, "burst": 4},
    )
    users, devices = range(300, 310), ("phone", "laptop")
    received: Counter[tuple[str, bytes]] = Counter()
    outcomes: dict[tuple[int, bytes], list[muster.DeviceResult]] = {}
    with instance.running("--with", "presence"):
        async with contextlib.AsyncExitStack() as stack:
            reading = []
            for user in users:
                for device in devices:
                    credential = token(instance, user, device)
                    opened = muster.connect(instance.folder.path, proxies=[], token=credential, timeout=PATIENT_S)
                    client = await stack.enter_async_context(opened)
                    reading.append(asyncio.create_task(read(client, f"{user} {device}", received)))
            named = [str(user) for user in users]
            await until_asked(lambda: all(len(each["devices"]) == 2 for each in who(instance, *named)), PATIENT_S)
            backend = await stack.enter_async_context(
                muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S)
            )
            left = iter(range(count))

            async def send() -> None:
                for number in left:
                    user, data = users[number % len(users)], b"%d" % number
                    while True:
                        try:
                            outcomes[user, data] = await backend.send(user, data, expires=10.0)
                            break
                        except muster.Refused as error:
                            if error.retry_after is None and error.code != "busy":
                                raise
                            await asyncio.sleep(error.retry_after or 0.05)
                        except muster.Unavailable:
                            await asyncio.sleep(0.1)

            sending = [asyncio.create_task(send()) for _ in range(at_once)]
            for role in ("gateway", "unicast", "proxy", "online-proxy"):
                await asyncio.sleep(0.3)
                name = instance.names(role)[-1]
                await instance.renew(name)
            await asyncio.gather(*sending)
            await until_asked(lambda: all(len(each["devices"]) == 2 for each in who(instance, *named)), PATIENT_S)
            after = [(user, await reached(backend, user, devices)) for user in users]
            await asyncio.sleep(1.0)  # what was reported as expired may still come
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    told = Counter(each.outcome for results in outcomes.values() for each in results)
    figures(outcomes=told, messages=len(outcomes))
    assert len(outcomes) == count, "none is silent"
    assert max(received.values()) == 1, "none comes twice"
    for (user, data), results in outcomes.items():
        for each in results:
            if each.outcome == "delivered":
                assert received[f"{user} {each.device}", data] == 1, (user, data, results)
    assert told["delivered"] > count, told
    assert all(received[f"{user} {device}", data] == 1 for user, data in after for device in devices)


async def reached(backend: muster.Client, user: int, devices: Sequence[str]) -> bytes:
    """Send until all devices have it: one that came to another gateway may be missed for two seconds. Returns the message
    that they all had."""
    numbers = itertools.count()
    async with asyncio.timeout(PATIENT_S):
        while True:
            data = b"after all %d to %d" % (next(numbers), user)
            results = await backend.send(user, data, expires=PATIENT_S)
            if {each.device: each.outcome for each in results} == dict.fromkeys(devices, "delivered"):
                return data
            await asyncio.sleep(0.25)


async def read(client: muster.Client, name: str, received: Counter[tuple[str, bytes]]) -> None:
    """Count what comes to a device."""
    async for message in client.direct():
        received[name, message.data] += 1
