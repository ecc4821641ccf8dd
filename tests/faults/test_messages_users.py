"""Delayed messages to users, by the real command and real processes: where presence runs, a device that is online has it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.instance import Instance
from tests.faults.test_messages import said
from tests.faults.test_unicast import device, got, seen
from tests.waiting import PATIENT_S, until_asked


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance with presence and topics of user 7: `alerts`, and `brief`, which has two attempts."""
    text = "[database]\nurl = 'none'\n[probes]\nevery_ms = 0\n[up]\ngateways = 2\n[presence]\ngrace_ms = 200\n"
    instance = Instance(tmp_path_factory.mktemp("users"), text)
    with instance.running("--with", "presence,messages"):
        often = ",".join(["300ms"] * 60)
        said(instance, "topic", "create", "alerts", "--callback", "user:7", "--retries", often, "--jitter", "0")
        said(instance, "topic", "create", "brief", "--callback", "user:7", "--retries", "100ms", "--jitter", "0")
        yield instance


async def ask(instance: Instance, *words: str, code: int = 0) -> Any:
    """As `said`, beside sessions of this process."""
    return await asyncio.to_thread(said, instance, *words, code=code)


async def state(instance: Instance, topic: str, id: str, wanted: str) -> Any:
    """The message, once it is in this state."""
    await until_asked(lambda: said(instance, "delay", "show", id, "--topic", topic)["state"] == wanted, PATIENT_S)
    return await ask(instance, "delay", "show", id, "--topic", topic)


async def test_a_fired_message_reaches_each_device_of_its_user(shared: Instance) -> None:
    async with device(shared, 7, "phone", at=0) as phone, device(shared, 7, "laptop", at=1) as laptop:
        await seen(shared, 7, "phone", "laptop")
        await ask(shared, "delay", "send", "alerts", "ship it", "--in", "300ms", "--id", "online")
        assert await got(phone, 1) == [b"ship it"]
        assert await got(laptop, 1) == [b"ship it"]
        assert (await state(shared, "alerts", "online", "done"))["attempts"] == 1
        async with device(shared, 8, "watch") as watch:  # a target of the message itself
            await seen(shared, 8, "watch")
            await ask(shared, "delay", "send", "alerts", "for 8", "--target", "user:8", "--id", "other")
            assert await got(watch, 1) == [b"for 8"]


async def test_a_user_that_comes_online_later_has_it_by_a_retry(shared: Instance) -> None:
    await ask(shared, "delay", "send", "alerts", "you were away", "--target", "user:9", "--id", "away")
    await state(shared, "alerts", "away", "retry")
    async with device(shared, 9, "phone") as phone:
        assert await got(phone, 1) == [b"you were away"]
        assert (await state(shared, "alerts", "away", "done"))["attempts"] > 1


async def test_a_user_who_never_comes_is_a_dead_letter_with_the_reason_or_expires(shared: Instance) -> None:
    await ask(shared, "delay", "send", "alerts", "x", "--target", "user:10", "--expires", "800ms", "--id", "expires")
    await ask(shared, "delay", "send", "brief", "x", "--target", "user:10", "--id", "dies")
    assert (await state(shared, "brief", "dies", "dead"))["attempts"] == 2
    letter = await ask(shared, "delay", "dead", "show", "dies", "--topic", "brief")
    assert (letter["last"], letter["answer"]) == ("failed", "not_online: user 10 is not online")
    await state(shared, "alerts", "expires", "expired")
    async with device(shared, 10, "phone") as phone:
        await seen(shared, 10, "phone")
        await ask(shared, "delay", "dead", "replay", "dies", "--topic", "brief")
        assert await got(phone, 1) == [b"x"]


async def test_what_no_device_takes_is_refused_at_once(shared: Instance) -> None:
    for target, text, why in (
        ("user:me", "x", "invalid user"),
        (f"user:{1 << 64}", "x", "invalid user"),
        ("", "x" * 961, "limit 960"),
    ):
        words = ["delay", "send", "alerts", text, *(["--target", target] if target else [])]
        done = await asyncio.to_thread(shared.ran, *words)
        assert (done.returncode in {1, 2}, why in done.stderr.decode()) == (True, True), done
